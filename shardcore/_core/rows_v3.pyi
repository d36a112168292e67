from shardcore._core.rows_baseline import *
