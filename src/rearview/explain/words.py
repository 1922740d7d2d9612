"""What the front ends say alike: of a Trace with no title, and of a stage without the mask.

>>> WITHOUT_MASK["weights"][0]
'A = softmax(S)'
"""

UNTITLED = "One attention, step by step"

# What a stage says of itself holds with the mask. Without it: the formula, and the sentence.
WITHOUT_MASK = {
    "mask": ("M = 0", "Without the mask nothing is forbidden: M would be 0 everywhere."),
    "masked": ("S + 0 = S", "Without the mask every score goes on to the softmax, the forbidden ones too."),
    "weights": (
        "A = softmax(S)",
        "Without the mask: rows sum to 1, but a part of each goes to keys that may not be heard.",
    ),
    "output": ("O = A V", "Without the mask: the values of keys that may not be heard are blended in."),
    "projected": (None, "Without the mask: what the layer would return if it heard everyone."),
}
# And the difference, with the mask less without it.
DIFFERENCE = {
    "weights": ("A with the mask − A without", "What the mask took from the forbidden keys went to the heard ones."),
    "output": ("O with the mask − O without", "How far what is heard moves when the forbidden keys fall silent."),
    "projected": (
        "Y with the mask − Y without",
        "How far the layer's output moves when the forbidden keys fall silent.",
    ),
}
