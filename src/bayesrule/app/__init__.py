"""The front for people with a table: command line, comparison, saved runs, reports."""
