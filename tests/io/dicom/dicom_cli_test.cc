// SPDX-License-Identifier: Apache-2.0
// The command line with DICOM: dicom list, and a folder wherever an image goes, against a server as a process.
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "io/dicom/dicom.h"
#include "io/format/nifti.h"
#include "tests/io/dicom/cli_server.h"
#include "tests/io/dicom/dicom_maker.h"

namespace intrawarp::io {
namespace {

using ::intrawarp::client::ProcessResult;
using ::intrawarp::client::RunProcess;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class DicomCliTest : public CliServerTest {
 protected:
  DicomCliTest() : maker_((folder_ / "in").string()) {
    std::filesystem::create_directories(folder_ / "in");
    maker_.Series({}, 5, 2);
  }
  void AddSecondSeries() {
    for (const double z : {0.0, 1.0}) {
      maker_.Save(*maker_.Slice({.z = z, .series = "1.2.3.4", .modality = "MR"}), absl::StrCat("second", z));
    }
  }

  HostVolume Download(const std::string& name) const {
    EXPECT_EQ(Run({"volume", "get", name, absl::StrCat("--out=", Path("out.nii"))}).exit_status, 0);
    EXPECT_EQ(Run({"volume", "delete", name}).exit_status, 0);
    const absl::StatusOr<HostVolume> volume = ReadNifti(Path("out.nii"));
    EXPECT_TRUE(volume.ok()) << volume.status();
    return volume.ok() ? *volume : HostVolume();
  }

  DicomMaker maker_;
};

TEST_F(DicomCliTest, AFolderBecomesAVolume) {
  const ProcessResult put = Run({"volume", "put", Path("in"), "--id=ct"});
  EXPECT_EQ(put.out, "volumes/ct\n") << put.err;
  const HostVolume volume = Download("volumes/ct");
  EXPECT_EQ(SizeString(volume.geometry), "12x10x5");
  EXPECT_EQ(volume.geometry.origin, (Vec3d{-20, 30, 0}));
  const std::vector<float> values = ToFloat(volume);
  for (int k = 0; k < 5; ++k) EXPECT_EQ(values[120 * k + 13], 7 + 100 + k - 1024);
}

TEST_F(DicomCliTest, SeveralSeriesAreChosenByIndexOrHash) {
  AddSecondSeries();
  const ProcessResult refused = Run({"volume", "put", Path("in")});
  EXPECT_EQ(refused.exit_status, 1);
  EXPECT_THAT(refused.err, StartsWith("intrawarp: INVALID_ARGUMENT: "));
  EXPECT_THAT(refused.err, HasSubstr("series: there are 2 volumes; choose one by its index or series: 1: CT"));
  EXPECT_EQ(Run({"volume", "put", Path("in"), "--series=2", "--id=a"}).exit_status, 0);
  EXPECT_EQ(Download("volumes/a").geometry.size.z, 2);
  EXPECT_EQ(Run({"volume", "put", absl::StrCat(Path("in"), "#1"), "--id=b"}).exit_status, 0);
  EXPECT_EQ(Download("volumes/b").geometry.size.z, 5);
  EXPECT_EQ(Run({"volume", "put", absl::StrCat(Path("in"), "#3")}).exit_status, 1);
  EXPECT_THAT(Run({"volume", "put", absl::StrCat(Path("in"), "#1"), "--series=2"}).err, HasSubstr("--series: "));
  EXPECT_THAT(Run({"volume", "put", Put("x.nii", "x"), "--series=2"}).err,
              HasSubstr("--series: the file is not DICOM"));
  EXPECT_THAT(Run({"volume", "put", Put("x.nii", "x"), "--resample"}).err, HasSubstr("--resample: the file is not"));
}

TEST_F(DicomCliTest, ResamplingIsAskedFor) {
  std::filesystem::remove(folder_ / "in" / "image2");
  EXPECT_THAT(Run({"volume", "put", Path("in")}).err, HasSubstr("(1 missing)"));
  EXPECT_EQ(Run({"volume", "put", Path("in"), "--resample", "--id=c"}).exit_status, 0);
  EXPECT_EQ(Download("volumes/c").geometry.size.z, 5);
  EXPECT_THAT(Run({"dicom", "list", Path("in"), "--resample"}).out, HasSubstr("interpolated"));
}

TEST_F(DicomCliTest, AFolderIsRegisteredLikeAFile) {
  const std::string in = Path("in");
  const ProcessResult result = Run({"register", absl::StrCat("--fixed=", in), absl::StrCat("--moving=", in, "#1"),
                                    "--method=rigid", "--iterations=2", "--levels=1"});
  EXPECT_EQ(result.exit_status, 0) << result.err;
  EXPECT_THAT(result.out, StartsWith("transforms/"));
  EXPECT_EQ(Run({"volume", "list"}).out, "");
}

TEST_F(DicomCliTest, AVolumeKnowsItsSeries) {
  const auto listing = ListDicom(Path("in"));
  ASSERT_THAT(listing, Succeeds());
  const DicomProvenance& from = listing->volumes[0].provenance;
  ASSERT_EQ(Run({"volume", "put", Path("in"), "--id=ct"}).exit_status, 0);
  const ProcessResult shown = Run({"volume", "show", "volumes/ct"});
  for (const std::string& line :
       {absl::StrCat("series_hash\t", from.series, "\n"),
        absl::StrCat("frame_of_reference_hash\t", from.frame_of_reference, "\n"), std::string("source\tdicom\n"),
        std::string("modality\tCT\n"), std::string("size\t12x10x5\n")}) {
    EXPECT_THAT(shown.out, HasSubstr(line)) << shown.err;
  }
  // The same voxels from a file of another kind are another volume, which knows no series.
  ASSERT_EQ(Run({"volume", "get", "volumes/ct", absl::StrCat("--out=", Path("ct.nrrd"))}).exit_status, 0);
  ASSERT_EQ(Run({"volume", "put", Path("ct.nrrd"), "--id=plain"}).exit_status, 0);
  EXPECT_EQ(Run({"volume", "list", "--provenance"}).out,
            absl::StrCat("volumes/ct\tdicom\tCT\t", from.series.substr(0, 16), "\t",
                         from.frame_of_reference.substr(0, 16), "\nvolumes/plain\tfile\t-\t-\t-\n"));
  EXPECT_EQ(Run({"volume", "show", "volumes/absent"}).exit_status, 1);

  const auto shares_frame = [&](const std::string& moving) {
    EXPECT_EQ(Run({"register", "--fixed=volumes/ct", absl::StrCat("--moving=", moving), "--method=rigid", "--levels=1",
                   "--iterations=1", absl::StrCat("--report=", Path("report.json"))})
                  .exit_status,
              0);
    return nlohmann::json::parse(Get(Path("report.json"))).at("same_frame_of_reference");
  };
  EXPECT_EQ(shares_frame("volumes/ct"), true);
  EXPECT_EQ(shares_frame("volumes/plain"), nullptr);
  for (const char* name : {"volumes/ct", "volumes/plain"}) EXPECT_EQ(Run({"volume", "delete", name}).exit_status, 0);
}

TEST_F(DicomCliTest, ShowsNothingThatIdentifiesAPatient) {
  const auto slice = maker_.Slice({.z = 20, .series = "1.2.826.0.1.55667788.2"});
  DcmDataset& d = *slice->getDataset();
  d.putAndInsertString(DCM_PatientName, "Zaunkoenig^Walpurga");
  d.putAndInsertString(DCM_PatientID, "PID-8675309");
  d.putAndInsertString(DCM_PatientBirthDate, "19310417");
  d.putAndInsertString(DCM_FrameOfReferenceUID, "1.2.826.0.1.44332211.4");
  d.putAndInsertString(DCM_Modality, "GEHEIM");
  for (const char* position : {"0\\0\\20", "Zaunkoenig\\19310417\\8675309"}) {
    d.putAndInsertString(DCM_ImagePositionPatient, position);
    maker_.Save(*slice, "planted");
    const ProcessResult list = RunProcess({INTRAWARP_CLI, "dicom", "list", Path("in")});
    const ProcessResult json = RunProcess({INTRAWARP_CLI, "dicom", "list", Path("in"), "--json"});
    const ProcessResult put = Run({"volume", "put", Path("in")});
    const ProcessResult one = Run({"volume", "put", absl::StrCat(Path("in"), "#7")});
    const std::string all = absl::StrCat(list.out, list.err, json.out, json.err, put.out, put.err, one.out, one.err);
    EXPECT_THAT(list.out, HasSubstr("\n2\t-\t"));
    for (const char* word : {"Zaunkoenig", "8675309", "19310417", "55667788", "44332211", "GEHEIM"}) {
      EXPECT_THAT(all, Not(HasSubstr(word)));
    }
  }
}

// A small file that expands to 200 MB, in little address space: a sentence and no signal, whatever there is.
TEST_F(DicomCliTest, WithoutMemoryTheCommandEndsWithASentence) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs the address space";
#endif
  std::filesystem::create_directories(folder_ / "large");
  DicomMaker maker(Path("large"));
  const auto slice = maker.Slice({});
  const std::vector<Uint8> zeros(200 << 20);
  slice->getDataset()->putAndInsertUint8Array(DcmTag(0x7001, 0x0010, EVR_OB), zeros.data(), zeros.size());
  maker.Save(*slice, "one", EXS_DeflatedLittleEndianExplicit);
  int told = 0;
  for (int mib = 300; mib <= 1100; mib += 100) {
    const ProcessResult listed =
        RunProcess({"/bin/bash", "-c",
                    absl::StrCat("ulimit -v ", mib << 10, "; exec ", INTRAWARP_CLI, " dicom list ", Path("large"))});
    const bool cannot_load = listed.exit_status == 127;  // not even its libraries
    if (listed.exit_status == 0 || cannot_load) continue;
    EXPECT_EQ(listed.exit_status, 1) << mib << listed.err;
    EXPECT_THAT(listed.err, HasSubstr("memory: there is not enough of it")) << mib;
    ++told;
  }
  EXPECT_GT(told, 0);
}

TEST_F(DicomCliTest, ListSaysWhatIsThereAndWhyNot) {
  AddSecondSeries();
  std::filesystem::remove(folder_ / "in" / "image2");
  std::ofstream(folder_ / "in" / "notes.txt") << "not DICOM";
  const ProcessResult list = RunProcess({INTRAWARP_CLI, "dicom", "list", Path("in")});
  EXPECT_EQ(list.exit_status, 0) << list.err;
  EXPECT_THAT(list.out, StartsWith("1\tCT\t"));
  EXPECT_THAT(list.out, HasSubstr("4 files\tINVALID_ARGUMENT: slices: 1 of 3 distances differ from 2 mm"));
  EXPECT_THAT(list.out, HasSubstr("2\tMR\t"));
  EXPECT_THAT(list.out, HasSubstr("2 files\t12x10x2\t0.5x0.75x1 mm\n"));
  EXPECT_THAT(list.out, HasSubstr("files: 7, without an image 0, not DICOM 1,"));
  EXPECT_THAT(list.out, Not(HasSubstr(kSeriesUid)));

  const ProcessResult json = RunProcess({INTRAWARP_CLI, "dicom", "list", Path("in"), "--json"});
  const nlohmann::json parsed = nlohmann::json::parse(json.out, nullptr, false);
  ASSERT_TRUE(parsed.is_object()) << json.out;
  EXPECT_EQ(parsed["files"], 7);
  EXPECT_EQ(parsed["volumes"][0]["status"], "INVALID_ARGUMENT");
  EXPECT_FALSE(parsed["volumes"][0].contains("geometry"));
  EXPECT_EQ(parsed["volumes"][1]["geometry"]["size"], (std::vector<int>{12, 10, 2}));
  EXPECT_EQ(parsed["volumes"][1]["series"].get<std::string>().size(), 64U);
  EXPECT_THAT(json.out, Not(HasSubstr("1.2.3.4")));

  const ProcessResult none = RunProcess({INTRAWARP_CLI, "dicom", "list", Path("nowhere")});
  EXPECT_EQ(none.exit_status, 1);
  EXPECT_THAT(none.err, StartsWith("intrawarp: NOT_FOUND: "));
}

}  // namespace
}  // namespace intrawarp::io
