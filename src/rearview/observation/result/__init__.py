"""What was observed: layers and their statistics, links, maps, labels, differences and files."""
