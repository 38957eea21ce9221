"""What every suite is made of: configurations, replicates, results, the runner and reports."""
