# SPDX-License-Identifier: Apache-2.0
"""The logic of the module, without its widgets and without an import of Slicer: what needs MRML gets its objects handed in.

grid_transform  a field as a grid transform that is updated in place
volumes         volume nodes to images and back
registration    one registration, and its result as nodes
live            a session on a volume that changes
dependencies    the Python packages that processing needs
"""
