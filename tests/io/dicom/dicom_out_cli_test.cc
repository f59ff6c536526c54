// SPDX-License-Identifier: Apache-2.0
// The command line from DICOM to DICOM: a pair of series becomes a registration object, a derived series, a warped
// segmentation and a report, and the registration object is a transform again.
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "io/dicom/dicom.h"
#include "io/dicom/reference.h"
#include "io/dicom/registration_object.h"
#include "io/dicom/segmentation_out.h"
#include "io/format/points.h"
#include "tests/io/dicom/cli_server.h"
#include "tests/io/dicom/dicom_maker.h"

namespace intrawarp::io {
namespace {

using ::intrawarp::client::ProcessResult;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Each stands in both series, and in nothing that is printed.
constexpr const char* kSecrets[] = {"Zaunkoenig",      "8675309",    "19310417", "Quellenweg", "Leberresektion",
                                    "Sonderprotokoll", "Hirschhorn", "55667788", "44332211"};

class DicomOutCliTest : public CliServerTest {
 protected:
  DicomOutCliTest() {
    MakeSeries("fixed", "1.2.826.0.1.55667788.1", "1.2.826.0.1.44332211.1", 0);
    MakeSeries("moving", "1.2.826.0.1.55667788.2", "1.2.826.0.1.44332211.2", 1.5);
  }

  // A bright lump on a slope, moved along x.
  void MakeSeries(const std::string& name, const std::string& series, const std::string& frame, double shift,
                  const std::string& patient = "PID-8675309") {
    std::filesystem::create_directories(folder_ / name);
    DicomMaker maker(Path(name));
    for (int k = 0; k < 12; ++k) {
      SliceSpec spec = {.columns = 32, .rows = 28, .z = 1.5 * k, .spacing = "1.5\\1.5", .series = series};
      spec.pixel = [&](int x, int y) {
        const double dx = (x - 15 - shift) / 6, dy = (y - 13) / 5.0, dz = (k - 5.5) / 4;
        return static_cast<uint16_t>(1000 + 900 * std::exp(-dx * dx - dy * dy - dz * dz) + 3 * (x - shift) + 2 * y);
      };
      const auto slice = maker.Slice(spec);
      DcmDataset& d = *slice->getDataset();
      d.putAndInsertString(DCM_SOPInstanceUID, absl::StrCat(series, ".", k + 1).c_str());
      d.putAndInsertString(DCM_StudyInstanceUID, absl::StrCat(series, ".100").c_str());
      d.putAndInsertString(DCM_FrameOfReferenceUID, frame.c_str());
      d.putAndInsertString(DCM_PatientName, "Zaunkoenig^Walpurga");
      d.putAndInsertString(DCM_PatientID, patient.c_str());
      d.putAndInsertString(DCM_PatientBirthDate, "19310417");
      d.putAndInsertString(DCM_PatientAddress, "Quellenweg 17");
      d.putAndInsertString(DCM_StudyDescription, "Leberresektion Planung");
      d.putAndInsertString(DCM_ProtocolName, "Sonderprotokoll");
      d.putAndInsertString(DCM_InstitutionName, "Klinikum Hirschhorn");
      maker.Save(*slice, absl::StrCat("s", k));
    }
  }

  // Whatever a command prints holds nothing of the patient.
  static ProcessResult Run(const std::vector<std::string>& arguments) {
    ProcessResult result = CliServerTest::Run(arguments);
    for (const char* secret : kSecrets) EXPECT_THAT(absl::StrCat(result.out, result.err), Not(HasSubstr(secret)));
    return result;
  }
  std::string Flag(const std::string& name, const std::string& file) const {
    return absl::StrCat("--", name, "=", Path(file));
  }
  ProcessResult Register(const std::string& method, std::vector<std::string> more) const {
    std::vector<std::string> arguments = {
        "register",   Flag("fixed", "fixed"), Flag("moving", "moving"), absl::StrCat("--method=", method),
        "--levels=2", "--iterations=10"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Run(arguments);
  }

  // Points within the fixed image through a transform.
  std::vector<Vec3d> Map(const std::string& transform) const {
    std::string text = "x,y,z\n";
    for (int i = 0; i < 50; ++i) absl::StrAppend(&text, -15 + 0.7 * i, ",", 35 + 0.6 * i, ",", 1 + 0.29 * i, "\n");
    Put("p.csv", text);
    EXPECT_EQ(
        Run({"points", absl::StrCat("--transform=", transform), Flag("in", "p.csv"), Flag("out", "q.csv")}).exit_status,
        0);
    const absl::StatusOr<std::vector<Vec3d>> mapped = ReadPoints(Path("q.csv"));
    EXPECT_TRUE(mapped.ok());
    return mapped.ok() ? *mapped : std::vector<Vec3d>();
  }
  double LargestDistance(const std::string& a, const std::string& b) const {
    const std::vector<Vec3d> p = Map(a), q = Map(b);
    EXPECT_EQ(p.size(), q.size());
    double most = 0;
    for (size_t i = 0; i < p.size(); ++i) most = std::max(most, std::sqrt(Dot(p[i] - q[i], p[i] - q[i])));
    return most;
  }
};

std::string NameIn(const ProcessResult& result) { return std::string(absl::StripSuffix(result.out, "\n")); }

TEST_F(DicomOutCliTest, OneCommandFromDicomToDicom) {
  const ProcessResult result = Register("affine,ffd", {Flag("registration", "reg.dcm"), Flag("warped", "warped/"),
                                                       Flag("dicom_report", "report.dcm"), "--spacing_vox=6"});
  ASSERT_EQ(result.exit_status, 0) << result.err;
  const std::string transform = NameIn(result);
  EXPECT_THAT(transform, StartsWith("transforms/"));
  EXPECT_LT(LargestDistance(transform, Path("reg.dcm")), 0.011);
  // And by the other command, coarser.
  EXPECT_EQ(Run({"transform", "get", transform, Flag("out", "again.dcm"), Flag("fixed", "fixed"),
                 Flag("moving", "moving"), "--tolerance_mm=0.2"})
                .exit_status,
            0);
  EXPECT_LT(LargestDistance(transform, Path("again.dcm")), 0.2);
  EXPECT_LT(std::filesystem::file_size(Path("again.dcm")), std::filesystem::file_size(Path("reg.dcm")));
  const ProcessResult list = Run({"dicom", "list", Path("warped")});
  EXPECT_THAT(list.out, StartsWith("1\tCT\t"));
  EXPECT_THAT(list.out, HasSubstr("32x28x12\t1.5x1.5x1.5 mm"));
  EXPECT_TRUE(std::filesystem::exists(Path("report.dcm")));
  // The derived series is the volume that a file would have held, rounded, with air where there is no source.
  EXPECT_EQ(Run({"warp", absl::StrCat("--transform=", transform), Flag("moving", "moving"), Flag("like", "fixed"),
                 "--fill=-1000", Flag("out", "warped.nii")})
                .exit_status,
            0);
  const std::vector<float> series = ToFloat(ReadDicom(Path("warped"))->volume);
  const std::vector<float> file = ToFloat(*ReadNifti(Path("warped.nii")));
  ASSERT_EQ(series.size(), file.size());
  for (size_t i = 0; i < file.size(); ++i) ASSERT_NEAR(series[i], file[i], 0.501) << i;
}

TEST_F(DicomOutCliTest, EveryKindOfTransformIsAnObject) {
  for (const std::string method : {"rigid", "log-demons"}) {
    const ProcessResult result = Register(method, {Flag("registration", "reg.dcm")});
    ASSERT_EQ(result.exit_status, 0) << result.err;
    EXPECT_LT(LargestDistance(NameIn(result), Path("reg.dcm")), 0.001) << method;
  }
  // A start of another registration.
  ASSERT_EQ(Register("rigid", {Flag("registration", "reg.dcm")}).exit_status, 0);
  EXPECT_EQ(Register("affine", {Flag("initial", "reg.dcm")}).exit_status, 0);
}

TEST_F(DicomOutCliTest, AWarpedSegmentationIsOne) {
  const absl::StatusOr<DicomReference> moving = DicomReference::Read(Path("moving"));
  ASSERT_THAT(moving, Succeeds());
  std::vector<float> mask(moving->geometry.voxels());
  for (size_t i = 0; i < mask.size(); i += 3) mask[i] = 1;
  ASSERT_THAT(WriteDicomSegmentation(Path("seg.dcm"), moving->geometry, mask, *moving, nullptr), Succeeds());
  Put("identity.txt", "1 0 0 0\n0 1 0 0\n0 0 1 0\n0 0 0 1\n");
  const std::vector<std::string> warp = {"warp", Flag("transform", "identity.txt"), Flag("moving", "seg.dcm"),
                                         Flag("like", "fixed")};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), warp.begin(), warp.end());
    return Run(more);
  };
  const ProcessResult result = with({Flag("out", "out.dcm")});
  EXPECT_EQ(result.exit_status, 0) << result.err;
  const absl::StatusOr<DicomVolume> read = ReadDicom(Path("out.dcm"));
  ASSERT_THAT(read, Succeeds());
  EXPECT_EQ(read->provenance.modality, "SEG");
  EXPECT_EQ(ToFloat(read->volume), mask);
  EXPECT_EQ(with({Flag("out", "out.dcm"), "--interpolation=linear"}).exit_status, 2);
  EXPECT_EQ(with({Flag("out", "out.dcm"), "--fill=1"}).exit_status, 2);
  // An image is not a mask.
  const ProcessResult image = Run({"warp", Flag("transform", "identity.txt"), Flag("moving", "moving"),
                                   Flag("like", "fixed"), Flag("out", "image.dcm")});
  EXPECT_EQ(image.exit_status, 1);
  EXPECT_THAT(image.err, HasSubstr("mask: must hold only 0 and 1"));
}

TEST_F(DicomOutCliTest, AResidentImageNamesItsSeriesApart) {
  ASSERT_EQ(Run({"volume", "put", Path("fixed"), "--id=f"}).exit_status, 0);
  const std::vector<std::string> arguments = {"register",       "--fixed=volumes/f",         Flag("moving", "moving"),
                                              "--method=rigid", Flag("warped", "resident/"), "--levels=1"};
  const ProcessResult refused = Run(arguments);
  EXPECT_EQ(refused.exit_status, 2);
  EXPECT_THAT(refused.err, HasSubstr("--fixed: a DICOM output refers to a series"));
  std::vector<std::string> named = arguments;
  named.push_back(Flag("fixed_dicom", "fixed"));
  EXPECT_EQ(Run(named).exit_status, 0);
  EXPECT_EQ(ReadDicom(Path("resident"))->volume.geometry.size, (Int3{32, 28, 12}));
  EXPECT_EQ(Run({"volume", "delete", "volumes/f"}).exit_status, 0);
}

TEST_F(DicomOutCliTest, WhatDoesNotFitIsRefusedBeforeAnyWork) {
  const ProcessResult idle = Register("rigid", {Flag("fixed_dicom", "fixed")});
  EXPECT_EQ(idle.exit_status, 2);
  EXPECT_THAT(idle.err, HasSubstr("--fixed_dicom: no DICOM output needs it"));
  EXPECT_EQ(Register("rigid", {"--tolerance_mm=1"}).exit_status, 2);
  EXPECT_EQ(Register("rigid", {Flag("registration", "reg.txt")}).exit_status, 2);
  EXPECT_EQ(Run({"transform", "get", "transforms/x", Flag("out", "x.tfm"), Flag("fixed", "fixed")}).exit_status, 2);
  EXPECT_EQ(Run({"transform", "get", "transforms/x", Flag("out", "x.dcm"), Flag("fixed", "fixed")}).exit_status, 2);
  EXPECT_THAT(Register("rigid", {Flag("warped", "nowhere/warped/")}).err, HasSubstr("NOT_FOUND: --warped: "));
  Put("p.csv", "x,y,z\n1,2,3\n");
  const ProcessResult image = Run({"points", Flag("transform", "fixed/s0"), Flag("in", "p.csv"), Flag("out", "q.csv")});
  EXPECT_EQ(image.exit_status, 1);
  EXPECT_THAT(image.err, HasSubstr("SOPClassUID: "));
  MakeSeries("moving", "1.2.826.0.1.55667788.2", "1.2.826.0.1.44332211.2", 1.5, "PID-8675309-2");
  const ProcessResult other = Register("rigid", {Flag("registration", "reg.dcm")});
  EXPECT_EQ(other.exit_status, 1);
  EXPECT_THAT(other.err, HasSubstr("INVALID_ARGUMENT: patient: "));
  EXPECT_EQ(other.out, "");
  EXPECT_FALSE(std::filesystem::exists(Path("reg.dcm")));
  EXPECT_EQ(Run({"volume", "list"}).out, "");
}

}  // namespace
}  // namespace intrawarp::io
