# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for the MRML classes that the module uses, on the real VTK: the methods by their names in Slicer, no more."""
import itertools

import vtk

_ids = itertools.count(1)
_nodes = {}


class Node:
    def __init__(self, name):
        self._name = name
        self._id = f"{type(self).__name__}{next(_ids)}"
        self._parent = None
        self.modified = 0
        _nodes[self._id] = self

    def GetName(self):
        return self._name

    def GetID(self):
        return self._id

    def Modified(self):
        self.modified += 1

    def SetAndObserveTransformNodeID(self, node_id):
        self._parent = _nodes[node_id]

    def GetParentTransformNode(self):
        return self._parent


class TransformNode(Node):
    """A point of the world to where the data of a child have their value: parents first."""

    def from_world(self, point):
        return self.from_parent(point if self._parent is None else self._parent.from_world(point))


class LinearTransformNode(TransformNode):
    def __init__(self, name):
        super().__init__(name)
        self._from_parent = vtk.vtkMatrix4x4()

    def SetMatrixTransformFromParent(self, matrix):
        self._from_parent.DeepCopy(matrix)

    def IsTransformToWorldLinear(self):
        return self._parent is None or self._parent.IsTransformToWorldLinear()

    def GetMatrixTransformToWorld(self, matrix):
        matrix.DeepCopy(self._from_parent)
        matrix.Invert()
        if self._parent is not None:
            above = vtk.vtkMatrix4x4()
            self._parent.GetMatrixTransformToWorld(above)
            vtk.vtkMatrix4x4.Multiply4x4(above, matrix, matrix)

    def from_parent(self, point):
        return self._from_parent.MultiplyPoint((*point, 1.0))[:3]


class GridTransformNode(TransformNode):
    def SetAndObserveTransformFromParent(self, transform):
        self.transform = transform

    def IsTransformToWorldLinear(self):
        return False

    def from_parent(self, point):
        return self.transform.TransformPoint(point)


class OrientedGridTransform:
    """vtkOrientedGridTransform: VTK's grid transform in a rotated frame; displacements are along the world's axes."""

    def __init__(self):
        self._grid = vtk.vtkGridTransform()
        self._grid.SetInterpolationModeToLinear()
        self._direction = vtk.vtkMatrix4x4()
        self.image = None

    def SetDisplacementGridData(self, image):
        self.image = image
        self._grid.SetDisplacementGridData(image)

    def SetGridDirectionMatrix(self, matrix):
        self._direction.DeepCopy(matrix)

    def Modified(self):
        self._grid.Modified()

    def TransformPoint(self, point):
        if self.image is None:
            return tuple(point)
        origin = self.image.GetOrigin()
        offset = [point[a] - origin[a] for a in range(3)]
        turned = [sum(self._direction.GetElement(row, a) * offset[row] for row in range(3)) + origin[a] for a in range(3)]
        moved = self._grid.TransformPoint(turned)
        return tuple(point[a] + moved[a] - turned[a] for a in range(3))


class ScalarVolumeNode(Node):
    def __init__(self, name):
        super().__init__(name)
        self._data = None
        self._matrix = vtk.vtkMatrix4x4()

    def GetImageData(self):
        return self._data

    def SetAndObserveImageData(self, data):
        self._data = data

    def GetIJKToRASMatrix(self, matrix):
        matrix.DeepCopy(self._matrix)

    def SetIJKToRASMatrix(self, matrix):
        self._matrix.DeepCopy(matrix)
