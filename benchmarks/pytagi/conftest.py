"""These scripts run where pytagi is installed, which is not where tests run."""

collect_ignore_glob = ["*.py"]
