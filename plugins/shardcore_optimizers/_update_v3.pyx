include "_update.pxi"
