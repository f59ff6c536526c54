// SPDX-License-Identifier: Apache-2.0
// Written objects as dciodvfy, dcmdump, pydicom, plastimatch and Orthanc judge them, where they are installed.
#include <dcmtk/config/osconfig.h>
#include <dcmtk/dcmdata/dctk.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "io/dicom/derived_series.h"
#include "io/dicom/reference.h"
#include "io/dicom/registration_object.h"
#include "io/dicom/report_object.h"
#include "io/dicom/segmentation_out.h"
#include "io/file/file.h"
#include "io/picture/report_pdf.h"
#include "tests/client/process.h"
#include "tests/io/dicom/objects_fixture.h"
#include "tests/support/eventually.h"
#include "tests/support/free_port.h"

namespace intrawarp::io {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// ---- Other programs' judgement --------------------------------------------------------------------------------------

class DicomValidationTest : public DicomObjectsTest {
 protected:
  static bool HasProgram(const std::string& name) {
    return std::system(absl::StrCat("command -v ", name, " >/dev/null 2>&1").c_str()) == 0;
  }

  // What the program prints on both streams.
  std::string Output(const std::string& command) const {
    (void)std::system(absl::StrCat(command, " >'", Path("said"), "' 2>&1").c_str());
    return Get(Path("said"));
  }

  // One object of each kind; their paths.
  std::vector<std::string> WriteAll() {
    MakeSeries("mr", kMovingSeries, kMovingFrame, kMovingStudy, 5, "MR");
    MakeSeries("pet", kMovingSeries, kMovingFrame, kMovingStudy, 5, "PT");
    const DicomReference fixed = Reference("fixed"), moving = Reference("moving"), mr = Reference("mr");
    const Geometry& grid = fixed.geometry;
    const std::vector<float> mask(grid.voxels(), 1);
    const ItkTransform field = GridOf(ItkTransform::Kind::kDisplacement, grid, SomeAffine(), 5);
    EXPECT_THAT(WriteDicomRegistration(Path("rigid.dcm"), AffineOf(SomeRigid()), fixed, moving), Succeeds());
    EXPECT_THAT(WriteDicomRegistration(Path("field.dcm"), field, fixed, mr), Succeeds());
    EXPECT_THAT(WriteDerivedSeries(Path("ct"), grid, Ramp(grid), fixed, moving), Succeeds());
    EXPECT_THAT(WriteDerivedSeries(Path("mr_out"), grid, Ramp(grid), fixed, mr), Succeeds());
    EXPECT_THAT(WriteDerivedSeries(Path("pet_out"), grid, Ramp(grid), fixed, Reference("pet")), Succeeds());
    EXPECT_THAT(WriteDicomSegmentation(Path("seg.dcm"), grid, mask, fixed, nullptr), Succeeds());
    EXPECT_THAT(WriteDicomReport(Path("report.dcm"), *RenderReportPdf(SomeReport()), "Title", fixed, moving),
                Succeeds());
    return {Path("rigid.dcm"),          Path("field.dcm"),           Path("ct/IM00001.dcm"), Path("ct/IM00005.dcm"),
            Path("mr_out/IM00003.dcm"), Path("pet_out/IM00002.dcm"), Path("seg.dcm"),        Path("report.dcm")};
  }
};

TEST_F(DicomValidationTest, DciodvfyFindsNoError) {
  if (!HasProgram("dciodvfy")) GTEST_SKIP() << "dciodvfy is not installed";
  for (const std::string& path : WriteAll()) {
    const std::string said = Output(absl::StrCat("dciodvfy '", path, "'"));
    EXPECT_FALSE(said.empty()) << path;
    for (const absl::string_view line : absl::StrSplit(said, '\n')) {
      EXPECT_FALSE(absl::StartsWith(line, "Error")) << path << ": " << line;
    }
  }
}

TEST_F(DicomValidationTest, DcmdumpReadsAll) {
  if (!HasProgram("dcmdump")) GTEST_SKIP() << "dcmdump is not installed";
  for (const std::string& path : WriteAll()) {
    const std::string said = Output(absl::StrCat("dcmdump '", path, "'"));
    EXPECT_THAT(said, HasSubstr("SOPClassUID"));
    EXPECT_THAT(said, Not(HasSubstr("E: ")));
    EXPECT_THAT(said, Not(HasSubstr("W: ")));
  }
}

// tests/io/dicom/read_registration.py maps points by pydicom and numpy alone.
TEST_F(DicomValidationTest, PydicomMapsPointsAlike) {
  if (std::system("/usr/bin/python3 -c 'import pydicom, numpy' >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "python3-pydicom is not installed";
  }
  std::vector<ItkTransform> transforms = {AffineOf(SomeAffine())};
  transforms[0].grid = Anisotropic({100, 100, 100});
  for (const Geometry& grid : Grids({9, 8, 7})) {
    transforms.push_back(GridOf(ItkTransform::Kind::kDisplacement, grid, SomeAffine(), 5));
    transforms.push_back(GridOf(ItkTransform::Kind::kControlGrid, grid, SomeRigid(), 1));
  }
  double most = 0;
  for (const ItkTransform& t : transforms) {
    ASSERT_THAT(WriteDicomRegistration(Path("reg.dcm"), t, Reference("fixed"), Reference("moving")), Succeeds());
    const std::vector<Vec3d> points = PointsAbout(t, false);
    std::string text;
    for (const Vec3d& p : points) {
      absl::StrAppend(&text, FormatDouble(p.x), " ", FormatDouble(p.y), " ", FormatDouble(p.z), "\n");
    }
    Put("points", text);
    const std::string said = Output(absl::StrCat("/usr/bin/python3 '", INTRAWARP_READ_REGISTRATION, "' '",
                                                 Path("reg.dcm"), "' '", Path("points"), "' '", Path("mapped"), "'"));
    ASSERT_EQ(said, "");
    std::ifstream mapped(Path("mapped"));
    for (const Vec3d& p : points) {
      Vec3d q;
      ASSERT_TRUE(mapped >> q.x >> q.y >> q.z);
      most = std::max(most, Distance(q, Mapped(t, p)));
    }
  }
  std::printf("largest difference through pydicom: %.2g mm\n", most);
  EXPECT_LE(most, kAimMm);
}

// plastimatch's Spatial Registration of an affine map, between two series of ours.
TEST_F(DicomValidationTest, WhatPlastimatchWritesIsRead) {
  if (!HasProgram("plastimatch")) GTEST_SKIP() << "plastimatch is not installed";
  double most = 0;
  for (const AffineMap& map : {SomeRigid(), SomeAffine()}) {
    std::filesystem::remove_all(folder_ / "sro");
    ASSERT_THAT(WriteItkTransform(Path("map.tfm"), AffineOf(map)), Succeeds());
    const std::string said =
        Output(absl::StrCat("plastimatch xf-convert --input '", Path("map.tfm"), "' --output-dicom '", Path("sro"),
                            "' --fixed-rcs '", Path("fixed"), "' --moving-rcs '", Path("moving"), "'"));
    std::string object;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_ / "sro")) {
      if (entry.is_regular_file()) object = entry.path();
    }
    ASSERT_NE(object, "") << said;
    const absl::StatusOr<ItkTransform> read = ReadDicomRegistration(object);
    ASSERT_THAT(read, Succeeds()) << said;
    ItkTransform t = AffineOf(map);
    t.grid = Anisotropic({100, 100, 100});
    for (const Vec3d& p : PointsAbout(t, false)) most = std::max(most, Distance(Mapped(t, p), Mapped(*read, p)));
  }
  std::printf("largest difference from plastimatch: %.2g mm\n", most);
  EXPECT_LE(most, kAimMm);
}

// ---- An archive -----------------------------------------------------------------------------------------------------

class DicomArchiveTest : public DicomValidationTest {
 protected:
  void Start() {
    http_ = FreePort();
    dicom_ = FreePort();
    Put("orthanc.json", absl::StrCat("{\"StorageDirectory\": \"", Path("archive"), "\", \"HttpPort\": ", http_,
                                     ", \"DicomPort\": ", dicom_,
                                     ", \"RemoteAccessAllowed\": false, \"AuthenticationEnabled\": false, "
                                     "\"DicomAlwaysAllowStore\": true, \"Plugins\": []}"));
    archive_ = std::make_unique<client::Process>(
        std::vector<std::string>{"/bin/sh", "-c", absl::StrCat("exec Orthanc '", Path("orthanc.json"), "'")});
  }
  bool WaitUntilItAnswers() {
    return Eventually([&] { return Output(Url("/system")).find("ApiVersion") != std::string::npos; });
  }
  std::string Url(const std::string& path) const {
    return absl::StrCat("curl -s --max-time 20 http://127.0.0.1:", http_, path);
  }

  // The data set without its meta header, which an archive writes anew.
  std::string DatasetOf(const std::string& path) const {
    DcmFileFormat file;
    EXPECT_TRUE(file.loadFile(path.c_str()).good()) << path;
    EXPECT_TRUE(file.saveFile(Path("plain").c_str(), EXS_LittleEndianExplicit, EET_ExplicitLength, EGL_recalcGL,
                              EPD_noChange, 0, 0, EWM_dataset)
                    .good());
    return Get(Path("plain"));
  }

  int http_ = 0, dicom_ = 0;
  std::unique_ptr<client::Process> archive_;
};

TEST_F(DicomArchiveTest, EveryObjectComesBackAsItWas) {
  if (!HasProgram("Orthanc") || !HasProgram("storescu") || !HasProgram("curl")) {
    GTEST_SKIP() << "Orthanc, storescu and curl are not all installed";
  }
  const std::vector<std::string> paths = WriteAll();
  Start();
  ASSERT_TRUE(WaitUntilItAnswers());
  for (const std::string& path : paths) {
    EXPECT_EQ(Output(absl::StrCat("storescu -R 127.0.0.1 ", dicom_, " '", path, "'")), "") << path;
  }
  std::set<std::string> sent, kept;
  for (const std::string& path : paths) sent.insert(DatasetOf(path));
  const std::string listed = Output(Url("/instances"));
  for (const absl::string_view part : absl::StrSplit(listed, '"')) {
    if (part.size() != 44) continue;  // an identifier of Orthanc's
    Put("fetched", Output(Url(absl::StrCat("/instances/", part, "/file"))));
    kept.insert(DatasetOf(Path("fetched")));
  }
  EXPECT_EQ(kept.size(), paths.size());
  EXPECT_TRUE(kept == sent);
  archive_->Signal(SIGTERM);
  EXPECT_EQ(archive_->Wait().exit_status, 0);
}

}  // namespace
}  // namespace intrawarp::io
