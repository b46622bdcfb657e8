"""The tests. A regular package, so that no `tests` folder of an installed distribution comes before this one."""
