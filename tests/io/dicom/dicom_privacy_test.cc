// SPDX-License-Identifier: Apache-2.0
// Nothing that identifies a patient comes out of the reader: not in messages, notes, listings or provenance, whatever
// goes wrong with the file.
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "io/dicom/dicom.h"
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
    {DCM_PatientTelephoneNumbers, "QX-55512", "55512"},
    {DCM_AccessionNumber, "ACC-90210", "90210"},
    {DCM_StudyDate, "20190728", "20190728"},
    {DCM_SeriesDate, "20190729", "20190729"},
    {DCM_AcquisitionTime, "134527.25", "134527"},
    {DCM_StudyID, "STUDY4711", "4711"},
    {DCM_StudyDescription, "Leberresektion Planung", "Leberresektion"},
    {DCM_SeriesDescription, "Arteriell Nachbar", "Nachbar"},
    {DCM_ProtocolName, "Sonderprotokoll", "Sonderprotokoll"},
    {DCM_InstitutionName, "Klinikum Hirschhorn", "Hirschhorn"},
    {DCM_ReferringPhysicianName, "Doktor^Eisenbart", "Eisenbart"},
    {DCM_OperatorsName, "Operator^Wunderlich", "Wunderlich"},
    {DCM_StationName, "STATION-SIRIUS", "SIRIUS"},
    {DCM_DeviceSerialNumber, "SN-112358", "112358"},
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
    for (const char* value : {"Zaunkoenig^Walpurga", "19310417\\8675309\\55512\\4711"}) {
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

}  // namespace
}  // namespace intrawarp::io
