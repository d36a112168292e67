"""The packages here are installed and run by tests; none of their own tests is collected here."""

collect_ignore_glob = ["*"]
