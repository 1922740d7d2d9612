"""Views of an observation: terminal, picture, page and sentences, all drawn from the same `LayerView`."""
