"""The kernels, in Gluon and Triton: `import rearview` imports none of them."""
