"""Small files of a table merged into few large ones, sorted, while others read and write."""
