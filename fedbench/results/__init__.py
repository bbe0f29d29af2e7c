"""What a run leaves behind: its history, its folder, what it prints, and how many runs are collected."""
