"""Labels that are not shifted.

Project-MONAI/GenerativeModels#314 (O). Position n was trained to predict token n, which is its own input. The model
does not leak, but its loss does.
"""

import torch.nn.functional as F

from rearview.auditing import Report, audit
from tests.auditing.gallery.parts import Heads, Tiny, tokens

PLACE = None


def leaking_loss(model, inputs, labels):
    return F.cross_entropy(model(inputs).flatten(0, 1), labels.flatten())


def fixed_loss(model, inputs, labels):
    return F.cross_entropy(model(inputs)[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def leaks() -> Report:
    return audit(Tiny(Heads()), tokens, loss=leaking_loss)


def fixed() -> Report:
    return audit(Tiny(Heads()), tokens, loss=fixed_loss)
