# SPDX-License-Identifier: Apache-2.0
"""In 3D Slicer's Python: makes a transform of the field that intrawarp-igtl sends, and keeps it up to date.

    exec(open("field_to_transform.py").read()); follow("IntrawarpField", "IntrawarpTransform")

The bridge sends vectors in RAS mm (coordinates = ras), from the fixed image to the moving one, which is the resampling
direction: the transform from parent.
"""
import slicer
import vtk


def follow(volume_name, transform_name):
    volume = slicer.util.getNode(volume_name)
    node = slicer.mrmlScene.AddNewNodeByClass("vtkMRMLGridTransformNode", transform_name)

    def update(*_):
        source = volume.GetImageData()
        if source is None:
            return
        grid = vtk.vtkImageData()
        grid.DeepCopy(source)
        directions = vtk.vtkMatrix4x4()
        volume.GetIJKToRASDirectionMatrix(directions)
        grid.SetOrigin(volume.GetOrigin())
        grid.SetSpacing(volume.GetSpacing())
        transform = slicer.vtkOrientedGridTransform()
        transform.SetGridDirectionMatrix(directions)
        transform.SetDisplacementGridData(grid)
        node.SetAndObserveTransformFromParent(transform)

    update()
    return volume.AddObserver(slicer.vtkMRMLVolumeNode.ImageDataModifiedEvent, update)
