"""Triton kernels. They import torch, triton and each other, nothing else of ds41; see README.md in this folder."""
