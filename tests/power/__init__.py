"""Power loss, killed processes and full disks: what the file store keeps when the machine does not."""
