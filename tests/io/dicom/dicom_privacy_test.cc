// SPDX-License-Identifier: Apache-2.0
// Nothing that identifies a patient comes out of the reader: not in messages, notes, listings or provenance, whatever
// goes wrong with the file. Of the objects that are written, only what their modules ask for does.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "io/dicom/derived_series.h"
#include "io/dicom/dicom.h"
#include "io/dicom/registration_object.h"
#include "io/dicom/report_object.h"
#include "io/dicom/segmentation_out.h"
#include "tests/io/dicom/dicom_maker.h"
#include "tests/io/io_test.h"

namespace intrawarp::io {
namespace {

// Each value has a word that occurs nowhere else.
struct Planted {
  DcmTagKey tag;
  const char* value;
  const char* word;
};
const Planted kPlanted[] = {
    {DCM_PatientName, "Zaunkoenig^Walpurga", "Zaunkoenig"},
    {DCM_PatientID, "PID-8675309", "8675309"},
    {DCM_PatientBirthDate, "19310417", "19310417"},
    {DCM_PatientAddress, "Quellenweg 17", "Quellenweg"},
    {DCM_PatientTelephoneNumbers, "QX-55512", "QX-55512"},
    {DCM_AccessionNumber, "ACC-90210", "ACC-90210"},
    {DCM_StudyDate, "20190728", "20190728"},
    {DCM_SeriesDate, "20190729", "20190729"},
    {DCM_AcquisitionTime, "134527.25", "134527"},
    {DCM_StudyID, "STUDY4711", "STUDY4711"},
    {DCM_StudyDescription, "Leberresektion Planung", "Leberresektion"},
    {DCM_SeriesDescription, "Arteriell Nachbar", "Nachbar"},
    {DCM_ProtocolName, "Sonderprotokoll", "Sonderprotokoll"},
    {DCM_InstitutionName, "Klinikum Hirschhorn", "Hirschhorn"},
    {DCM_ReferringPhysicianName, "Doktor^Eisenbart", "Eisenbart"},
    {DCM_OperatorsName, "Operator^Wunderlich", "Wunderlich"},
    {DCM_StationName, "STATION-SIRIUS", "SIRIUS"},
    {DCM_DeviceSerialNumber, "SN-112358", "SN-112358"},
    {DCM_ImageComments, "Kommentar Mondschein", "Mondschein"},
    {DCM_StudyInstanceUID, "1.2.826.0.1.11223344.1", "11223344"},
    {DCM_SeriesInstanceUID, "1.2.826.0.1.55667788.2", "55667788"},
    {DCM_SOPInstanceUID, "1.2.826.0.1.99887766.3", "99887766"},
    {DCM_FrameOfReferenceUID, "1.2.826.0.1.44332211.4", "44332211"},
    // Free text where DICOM wants a defined term.
    {DCM_Modality, "GEHEIM", "GEHEIM"},
};

class DicomPrivacyTest : public FileTest {
 protected:
  DicomPrivacyTest() : maker_(folder_.string()) {}

  std::unique_ptr<DcmFileFormat> PlantedSlice(double z) {
    auto slice = maker_.Slice({.z = z});
    for (const Planted& planted : kPlanted) slice->getDataset()->putAndInsertString(planted.tag, planted.value);
    return slice;
  }

  // Everything that leaves the reader for a path.
  static std::string Everything(const std::string& path) {
    std::string all;
    const auto entry = [&](const DicomProvenance& p, const std::vector<std::string>& notes) {
      absl::StrAppend(&all, p.modality, "\n", p.series, "\n", p.frame_of_reference, "\n", absl::StrJoin(notes, "\n"),
                      "\n");
    };
    if (const absl::StatusOr<DicomListing> listing = ListDicom(path); listing.ok()) {
      for (const DicomEntry& e : listing->volumes) {
        entry(e.provenance, e.notes);
        absl::StrAppend(&all, e.status.ToString(), "\n", DescribeDicomEntry(e, 1), "\n");
      }
    } else {
      absl::StrAppend(&all, listing.status().ToString(), "\n");
    }
    for (const char* series : {"", "1", "7", "0123456789abcdef"}) {
      const absl::StatusOr<DicomVolume> volume = ReadDicom(path, {.series = series});
      if (volume.ok()) entry(volume->provenance, volume->notes);
      absl::StrAppend(&all, volume.status().ToString(), "\n");
    }
    return all;
  }

  static void ExpectNothingIn(const std::string& text) {
    EXPECT_FALSE(text.empty());
    for (const Planted& planted : kPlanted) {
      EXPECT_FALSE(absl::StrContains(absl::AsciiStrToLower(text), absl::AsciiStrToLower(planted.word)))
          << planted.word << " in " << text;
    }
  }

  // What DCMTK writes to the standard streams counts, too.
  static void ExpectPrivate(const std::string& path) {
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const std::string all = Everything(path);
    ExpectNothingIn(absl::StrCat(all, testing::internal::GetCapturedStdout(), testing::internal::GetCapturedStderr()));
  }

  DicomMaker maker_;
};

TEST_F(DicomPrivacyTest, OfAVolume) {
  for (int k = 0; k < 3; ++k) maker_.Save(*PlantedSlice(k), absl::StrCat(k));
  ASSERT_THAT(ReadDicom(folder_.string()), Succeeds());
  ExpectPrivate(folder_.string());
}

TEST_F(DicomPrivacyTest, OfRefusedVolumes) {
  for (const double z : {0.0, 1.0, 5.0}) maker_.Save(*PlantedSlice(z), absl::StrCat(z));
  maker_.Save(*maker_.Slice({.series = "1.2.3"}), "other");
  ExpectPrivate(folder_.string());
}

TEST_F(DicomPrivacyTest, OfPlantedValuesWhereNumbersBelong) {
  for (const DcmTagKey& tag :
       {DCM_ImagePositionPatient, DCM_ImageOrientationPatient, DCM_PixelSpacing, DCM_RescaleSlope, DCM_NumberOfFrames,
        DCM_PhotometricInterpretation, DCM_ImageType, DCM_AcquisitionNumber, DCM_EchoTime, DCM_SOPClassUID,
        DCM_SliceThickness, DCM_TemporalPositionIdentifier, DCM_RescaleType, DCM_GridFrameOffsetVector}) {
    for (const char* value : {"Zaunkoenig^Walpurga", "19310417\\8675309\\QX-55512\\STUDY4711"}) {
      const auto slice = PlantedSlice(0);
      slice->getDataset()->putAndInsertString(tag, value);
      ExpectPrivate(maker_.Save(*slice, "one"));
    }
  }
}

TEST_F(DicomPrivacyTest, OfBrokenFiles) {
  const std::string bytes = Get(maker_.Save(*PlantedSlice(0), "whole"));
  std::filesystem::remove(Path("whole"));
  for (size_t length = 100; length < bytes.size(); length += 7) ExpectPrivate(Put("cut", bytes.substr(0, length)));
  for (size_t at = 128; at < bytes.size(); at += 5) {
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x5a);
    // A changed word would not be found.
    ExpectPrivate(Put("cut", flipped));
  }
}

// The fixed series is a plain one of the same patient, or the planted one.
class DicomObjectPrivacyTest : public DicomPrivacyTest {
 protected:
  DicomObjectPrivacyTest() {
    for (const char* name : {"planted", "plain"}) {
      std::filesystem::create_directories(folder_ / name);
      DicomMaker maker(Path(name));
      for (int k = 0; k < 3; ++k) {
        const auto slice = maker_.Slice({.z = 1.0 * k});
        DcmDataset& d = *slice->getDataset();
        if (std::string(name) == "planted") {
          for (const Planted& p : kPlanted) d.putAndInsertString(p.tag, p.value);
          d.putAndInsertString(DCM_SOPInstanceUID, absl::StrCat("1.2.826.0.1.99887766.", k + 1).c_str());
        } else {
          d.putAndInsertString(DCM_PatientID, "PID-8675309");
          d.putAndInsertString(DCM_StudyInstanceUID, "1.2.3.4");
        }
        d.putAndInsertString(DCM_Modality, "CT");
        maker.Save(*slice, absl::StrCat(k));
      }
    }
  }

  // All kinds of objects, and all that is said about them.
  std::string WriteAll(const DicomReference& fixed, const DicomReference& moving, float value) {
    ItkTransform field;
    field.kind = ItkTransform::Kind::kDisplacement;
    field.grid = fixed.geometry;
    field.vectors.assign(3 * fixed.geometry.voxels(), value);
    const std::vector<float> voxels(fixed.geometry.voxels(), value);
    std::string said;
    for (const absl::Status& status :
         {WriteDicomRegistration(Path("affine.dcm"), ItkTransform(), fixed, moving),
          WriteDicomRegistration(Path("field.dcm"), field, fixed, moving),
          WriteDerivedSeries(Path("series"), fixed.geometry, voxels, fixed, moving),
          WriteDicomSegmentation(Path("seg.dcm"), fixed.geometry, voxels, fixed, &moving),
          WriteDicomReport(Path("report.dcm"), value == 1 ? "%PDF-" : "", "Title", fixed, moving)}) {
      absl::StrAppend(&said, status.ToString(), "\n");
    }
    return said;
  }
  std::string Written() const {
    std::string all;
    for (const char* name : {"affine.dcm", "field.dcm", "series/IM00001.dcm", "seg.dcm", "report.dcm"}) {
      EXPECT_TRUE(std::filesystem::exists(Path(name))) << name;
      absl::StrAppend(&all, Get(Path(name)));
    }
    return all;
  }
  // But for the words that objects must carry.
  static void ExpectOnly(const std::string& bytes, const std::vector<std::string>& allowed) {
    for (const Planted& planted : kPlanted) {
      const bool may = std::find(allowed.begin(), allowed.end(), planted.word) != allowed.end();
      EXPECT_EQ(absl::StrContains(bytes, planted.word), may) << planted.word;
    }
  }
};

TEST_F(DicomObjectPrivacyTest, ObjectsCarryThePatientAndStudyOfTheFixedSeriesAlone) {
  const absl::StatusOr<DicomReference> fixed = DicomReference::Read(Path("planted"));
  const absl::StatusOr<DicomReference> moving = DicomReference::Read(Path("plain"));
  ASSERT_THAT(fixed, Succeeds());
  ASSERT_THAT(moving, Succeeds());
  ExpectNothingIn(WriteAll(*fixed, *moving, 1));
  ExpectOnly(Written(), {"Zaunkoenig", "8675309", "19310417", "ACC-90210", "20190728", "STUDY4711", "Leberresektion",
                         "Eisenbart", "11223344", "55667788", "99887766", "44332211"});
}

TEST_F(DicomObjectPrivacyTest, OfTheMovingSeriesObjectsHaveUidsAlone) {
  const absl::StatusOr<DicomReference> fixed = DicomReference::Read(Path("plain"));
  const absl::StatusOr<DicomReference> moving = DicomReference::Read(Path("planted"));
  ASSERT_THAT(fixed, Succeeds());
  ASSERT_THAT(moving, Succeeds());
  ExpectNothingIn(WriteAll(*fixed, *moving, 1));
  ExpectOnly(Written(), {"8675309" /* the fixed series has it, too */, "134527" /* when it was acquired */, "11223344",
                         "55667788", "99887766", "44332211"});
}

TEST_F(DicomObjectPrivacyTest, RefusalsNameNobody) {
  absl::StatusOr<DicomReference> fixed = DicomReference::Read(Path("planted"));
  absl::StatusOr<DicomReference> moving = DicomReference::Read(Path("planted"));
  ASSERT_THAT(fixed, Succeeds());
  ASSERT_THAT(moving, Succeeds());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  std::string said = WriteAll(*fixed, *moving, NAN);
  moving->header->putAndInsertString(DCM_PatientID, "another");
  absl::StrAppend(&said, WriteAll(*fixed, *moving, 1));
  for (const DcmTagKey& tag : {DCM_SOPInstanceUID, DCM_StudyInstanceUID, DCM_FrameOfReferenceUID, DCM_SOPClassUID}) {
    const auto slice = PlantedSlice(0);
    slice->getDataset()->putAndInsertString(tag, "Zaunkoenig 8675309");
    const std::string path = maker_.Save(*slice, "one");
    absl::StrAppend(&said, DicomReference::Read(path).status().ToString(),
                    ReadDicomRegistration(path).status().ToString());
  }
  absl::StrAppend(&said, testing::internal::GetCapturedStdout(), testing::internal::GetCapturedStderr());
  ExpectNothingIn(said);
  EXPECT_FALSE(std::filesystem::exists(Path("seg.dcm")));
}

}  // namespace
}  // namespace intrawarp::io
