"""What was checked, how often and with which figures: the table on the page of the proof."""
