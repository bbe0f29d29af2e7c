"""What papers print and how ours compares: tables, verdicts, figures, leaderboards, the result page."""
