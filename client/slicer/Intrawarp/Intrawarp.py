# SPDX-License-Identifier: Apache-2.0
"""The Slicer module: widgets and wiring. What it does stands in IntrawarpLib, which is tested without Slicer."""
import os
import time

import ctk
import qt
import slicer
import vtk
from slicer.ScriptedLoadableModule import (ScriptedLoadableModule, ScriptedLoadableModuleLogic, ScriptedLoadableModuleTest,
                                           ScriptedLoadableModuleWidget)
from slicer.util import VTKObservationMixin

from IntrawarpLib import dependencies, live, registration
from IntrawarpLib.grid_transform import TransformChain

POLL_MS = 30
SETTINGS = "Intrawarp/"


class Intrawarp(ScriptedLoadableModule):
    def __init__(self, parent):
        ScriptedLoadableModule.__init__(self, parent)
        parent.title = "Intrawarp"
        parent.categories = ["Registration"]
        parent.dependencies = []
        parent.contributors = ["The intrawarp authors"]
        parent.helpText = ("Registers volumes on an intrawarp server, once or live, and shows the deformation as a grid "
                           "transform with its verdict and its expected error. Images are sent to the server whose "
                           "address is given here, and nowhere else. Not for diagnostic use.")
        parent.acknowledgementText = "Apache License 2.0."
        slicer.app.connect("startupCompleted()", register_sample_data)


def register_sample_data():
    """A pair with a known deformation, which the module makes itself: nothing is downloaded."""
    import SampleData
    icons = os.path.join(os.path.dirname(__file__), "Resources", "Icons")
    SampleData.SampleDataLogic.registerCustomSampleDataSource(
        category="Intrawarp", sampleName="IntrawarpPhantom", thumbnailFileName=os.path.join(icons, "Intrawarp.png"),
        uris=None, fileNames=None, nodeNames=None, customDownloader=lambda source: IntrawarpLogic().make_phantom())


class IntrawarpWidget(ScriptedLoadableModuleWidget, VTKObservationMixin):
    def __init__(self, parent=None):
        ScriptedLoadableModuleWidget.__init__(self, parent)
        VTKObservationMixin.__init__(self)
        self.logic = None

    def setup(self):
        ScriptedLoadableModuleWidget.setup(self)
        widget = slicer.util.loadUI(self.resourcePath("UI/Intrawarp.ui"))
        widget.setMRMLScene(slicer.mrmlScene)
        self.layout.addWidget(widget)
        self.ui = slicer.util.childWidgetVariables(widget)
        self.logic = IntrawarpLogic()
        self.ui.serverEdit.text = qt.QSettings().value(SETTINGS + "Server", os.environ.get("INTRAWARP_SERVER", ""))
        self.ui.registerButton.connect("clicked()", self.on_register)
        self.ui.liveButton.connect("toggled(bool)", self.on_live)
        self.timer = qt.QTimer()
        self.timer.setInterval(POLL_MS)
        self.timer.connect("timeout()", self.on_timer)
        self.addObserver(slicer.mrmlScene, slicer.mrmlScene.StartCloseEvent, lambda caller, event: self.stop_live())

    def cleanup(self):
        self.stop_live()
        self.removeObservers()

    def on_register(self):
        with slicer.util.tryWithErrorDisplay("The registration failed.", waitCursor=True):
            self.logic.require_client()
            outcome = self.logic.register(self.address(), self.ui.fixedSelector.currentNode(),
                                          self.ui.movingSelector.currentNode(), self.ui.methodBox.currentText,
                                          self.ui.errorMapBox.checked, self.show_progress)
            self.show_status(outcome.status)

    def on_live(self, is_on):
        if not is_on:
            self.stop_live()
            return
        with slicer.util.tryWithErrorDisplay("The session could not be opened.", waitCursor=True):
            self.logic.require_client()
            frames = self.ui.movingSelector.currentNode()
            self.logic.start_live(self.address(), self.ui.fixedSelector.currentNode(), frames,
                                  self.ui.methodBox.currentText, self.ui.errorMapBox.checked)
            self.addObserver(frames, slicer.vtkMRMLScalarVolumeNode.ImageDataModifiedEvent, self.on_frame)
            self.timer.start()
            self.on_frame(frames)
            return
        self.ui.liveButton.checked = False

    def on_frame(self, caller, event=None):
        with slicer.util.tryWithErrorDisplay("The frame could not be sent."):
            self.logic.session.offer(caller)

    def on_timer(self):
        try:
            self.show_status(self.logic.session.poll())
        except Exception as error:  # the session has ended: the screen must say so
            self.stop_live()
            self.ui.statusLabel.text = f"NONE | the session ended: {error}"

    def stop_live(self):
        self.timer.stop()
        self.removeObservers(self.on_frame)
        self.logic.stop_live()
        self.ui.liveButton.checked = False

    def address(self):
        address = self.ui.serverEdit.text.strip()
        qt.QSettings().setValue(SETTINGS + "Server", address)
        return address

    def show_progress(self, progress):
        self.ui.progressBar.value = int(100 * progress.fraction)
        slicer.app.processEvents()

    def show_status(self, status):
        """In the panel and in each slice view; a stale or doubtful result is never shown like a good one."""
        text = status.text()
        self.ui.statusLabel.text = text
        self.ui.statusLabel.styleSheet = "" if status.is_ok else "background-color: #7a4b00; color: white;"
        for name in slicer.app.layoutManager().sliceViewNames():
            view = slicer.app.layoutManager().sliceWidget(name).sliceView()
            view.cornerAnnotation().SetText(vtk.vtkCornerAnnotation.UpperRight, "intrawarp: " + text)
            view.scheduleRender()


class IntrawarpLogic(ScriptedLoadableModuleLogic):
    """Nodes and the server; the rest is IntrawarpLib."""

    def __init__(self):
        ScriptedLoadableModuleLogic.__init__(self)
        self.session = None
        self.server = None

    def require_client(self):
        """Asks before it installs grpcio and protobuf; called when processing starts."""
        def confirm(packages):
            return slicer.util.confirmOkCancelDisplay(
                f"intrawarp needs {', '.join(packages)} from the Python Package Index. Install now?")
        return dependencies.require_client(confirm, slicer.util.pip_install)

    def node(self, class_name, name):
        """The node of this name, made where it is missing."""
        found = slicer.mrmlScene.GetFirstNodeByName(name)
        if found is not None and found.IsA(class_name):
            return found
        return slicer.mrmlScene.AddNewNodeByClass(class_name, name)

    def chain_for(self, moving):
        name = moving.GetName()
        chain = TransformChain(self.node("vtkMRMLLinearTransformNode", f"{name} intrawarp affine"),
                               self.node("vtkMRMLGridTransformNode", f"{name} intrawarp deformation"),
                               slicer.vtkOrientedGridTransform())
        chain.place(moving)
        return chain

    def error_map_for(self, moving, is_wanted):
        return self.node("vtkMRMLScalarVolumeNode", f"{moving.GetName()} expected error mm") if is_wanted else None

    def register(self, address, fixed, moving, method, with_error_map, progress=None):
        import intrawarp
        if fixed is None or moving is None:
            raise ValueError("choose a fixed and a moving volume")
        with intrawarp.connect(address or None) as server:
            return registration.register(server, intrawarp, fixed, moving, self.chain_for(moving), method=method,
                                         error_map_node=self.error_map_for(moving, with_error_map), progress=progress)

    def start_live(self, address, fixed, moving, method, with_error_map):
        """`method`: "auto" is the session's default."""
        import intrawarp
        if fixed is None or moving is None:
            raise ValueError("choose the resident (fixed) volume and the one whose changes are the frames")
        options = {} if method == "auto" else {"method": method}
        self.server = intrawarp.connect(address or None)
        self.session = live.LiveSession(self.server, intrawarp, fixed, self.chain_for(moving), resume=30.0,
                                        error_map_node=self.error_map_for(moving, with_error_map), **options)

    def stop_live(self):
        session, server = self.session, self.server
        self.session = self.server = None
        if session is not None:
            session.close()
        if server is not None:
            server.close(delete=True)

    def make_phantom(self):
        """Two volumes, one of which is the other one deformed; the truth is known."""
        intrawarp = self.require_client()
        from IntrawarpLib import volumes
        pair = intrawarp.phantom()
        nodes = []
        for name, image in (("IntrawarpFixed", pair.fixed), ("IntrawarpMoving", pair.moving)):
            node = slicer.mrmlScene.AddNewNodeByClass("vtkMRMLScalarVolumeNode", name)
            volumes.show_image(image, node)
            node.CreateDefaultDisplayNodes()
            nodes.append(node)
        return nodes


class IntrawarpTest(ScriptedLoadableModuleTest):
    """Within Slicer, against the pure Python server for tests; the traps have their tests in tests/client/slicer."""

    def setUp(self):
        slicer.mrmlScene.Clear()

    def runTest(self):
        self.setUp()
        self.test_registration_moves_the_volume()

    def test_registration_moves_the_volume(self):
        logic = IntrawarpLogic()
        fixed, moving = logic.make_phantom()
        import intrawarp.testing
        with intrawarp.testing.FakeServer() as server:
            outcome = logic.register(server.address, fixed, moving, "affine", False)
        self.assertEqual(outcome.status.verdict, "OK")
        self.assertIsNotNone(moving.GetParentTransformNode())
        started = time.time()
        self.delayDisplay("registered")
        self.assertLess(time.time() - started, 60)
