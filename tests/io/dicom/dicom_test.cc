// SPDX-License-Identifier: Apache-2.0
// The rules of the reader for a series of slices, each on files made for it.
#include "io/dicom/dicom.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/pixel_type.h"
#include "tests/io/dicom/dicom_fixture.h"
#include "tests/io/dicom/dicom_maker.h"

namespace intrawarp::io {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// ---- Order and spacing ----------------------------------------------------------------------------------------------

TEST_F(DicomTest, OrdersByPositionAndTakesSpacingFromIt) {
  maker_.Series({.z = -7}, 5, 2.5);
  const DicomVolume v = ReadOk();
  const Geometry& g = v.volume.geometry;
  EXPECT_EQ(SizeString(g), "12x10x5");
  EXPECT_EQ(g.spacing, (Vec3d{0.5, 0.75, 2.5}));
  EXPECT_EQ(g.origin, (Vec3d{-20, 30, -7}));
  EXPECT_EQ(v.volume.pixel_type, PixelType::kUint16);
  EXPECT_EQ(v.volume.rescale_intercept, -1024);
  EXPECT_EQ(Wrong(v), 0);
  EXPECT_EQ(v.provenance.modality, "CT");
  EXPECT_EQ(v.provenance.series.size(), 64U);
  EXPECT_THAT(v.notes, IsEmpty());
}

TEST_F(DicomTest, FollowsObliqueAxes) {
  // Columns run to -z, rows to +y: the normal is -x, so that the first slice is the one with the largest x.
  SliceSpec spec{.orientation = "0\\1\\0\\0\\0\\-1", .modality = "MR"};
  for (const double x : {3.0, -1.0, 1.0}) {
    spec.x = x;
    maker_.Save(*maker_.Slice(spec), absl::StrCat("at", x));
  }
  const Geometry g = ReadOk().volume.geometry;
  EXPECT_EQ(g.origin, (Vec3d{3, 30, 0}));
  EXPECT_EQ(g.spacing, (Vec3d{0.5, 0.75, 2}));
  const double wanted[3][3] = {{0, 0, -1}, {1, 0, 0}, {0, -1, 0}};
  for (int r = 0; r < 3; ++r) EXPECT_THAT(g.direction[r], ElementsAre(wanted[r][0], wanted[r][1], wanted[r][2]));
}

TEST_F(DicomTest, SearchesFoldersBelow) {
  std::filesystem::create_directories(folder_ / "a" / "b");
  DicomMaker deep((folder_ / "a" / "b").string());
  deep.Series({}, 3, 1);
  Put("notes.txt", "nothing of interest");
  EXPECT_EQ(Wrong(ReadOk()), 0);
  EXPECT_EQ(List().not_dicom, 1);
  EXPECT_THAT(Read({.limits = {.max_folder_depth = 2}}), Fails(Code::kResourceExhausted, "file: folders"));
  EXPECT_THAT(Read({.limits = {.max_files = 3}}), Fails(Code::kResourceExhausted, "more than 3 files"));
  EXPECT_THAT(Read({.limits = {.max_total_bytes = 999}}), Fails(Code::kResourceExhausted, "999 bytes"));
  EXPECT_THAT(Read({.limits = {.max_frames = 2}}), Fails(Code::kResourceExhausted, "frames: "));
  EXPECT_THAT(Read({.limits = {.max_volume_bytes = 700}}), Fails(Code::kResourceExhausted, "size: 720"));
}

TEST_F(DicomTest, ReadsASingleImageAsAPlane) {
  const DicomVolume v = ReadOk(maker_.Save(*maker_.Slice({}), "one"));
  EXPECT_EQ(SizeString(v.volume.geometry), "12x10x1");
  EXPECT_EQ(v.volume.geometry.spacing.z, 9);
  EXPECT_EQ(Wrong(v), 0);
}

TEST_F(DicomTest, RefusesAGapUnlessResampled) {
  maker_.Series({}, 8, 1.5);
  std::filesystem::remove(folder_ / "image2");  // the slice at index 1
  EXPECT_THAT(Read(), Fails(Code::kInvalidArgument,
                            "slices: 1 of 6 distances differ from 1.5 mm: 3 mm between slices 1 and 2 (1 missing)"));
  EXPECT_THAT(List().volumes[0].status, Fails(Code::kInvalidArgument, "(1 missing)"));
  const DicomVolume v = ReadFolder({.resample = true});
  EXPECT_EQ(SizeString(v.volume.geometry), "12x10x8");
  EXPECT_EQ(v.volume.geometry.spacing.z, 1.5);
  EXPECT_EQ(Wrong(v), 0);  // the values are linear in the index
  EXPECT_THAT(v.notes, ElementsAre(HasSubstr("; interpolated")));
}

TEST_F(DicomTest, ToleratesRoundedPositionsAndRefusesDrift) {
  for (const double z : {0.0, 1.005, 1.995, 3.0}) maker_.Save(*maker_.Slice({.z = z}), absl::StrCat("at", z));
  EXPECT_THAT(Read(), Succeeds());
  maker_.Save(*maker_.Slice({.z = 4.1}), "uneven");
  EXPECT_THAT(Read(), Fails(Code::kInvalidArgument, "slices: "));
}

TEST_F(DicomTest, DropsEqualDuplicatesAndRefusesOthers) {
  maker_.Series({}, 4, 1);
  maker_.Save(*maker_.Slice({.z = 2, .pixel = [](int x, int y) { return static_cast<uint16_t>(7 * x + 100 * y + 2); }}),
              "again");
  const DicomVolume v = ReadOk();
  EXPECT_EQ(SizeString(v.volume.geometry), "12x10x4");
  EXPECT_EQ(Wrong(v), 0);
  EXPECT_THAT(v.notes, ElementsAre("slices: dropped 1 equal duplicates"));
  maker_.Save(*maker_.Slice({.z = 3}), "other");
  EXPECT_THAT(Read(), Fails(Code::kInvalidArgument, "slices: at 2 of the positions there are several, which differ"));
}

// What one slice lacks and its neighbours have, with another value than the reader's default.
TEST_F(DicomTest, ASliceThatLacksWhatItsNeighboursHaveIsRefused) {
  const struct {
    DcmTagKey tag;
    const char* value;  // of the neighbours; null: as they are made
    const char* named;
  } kCases[] = {{DCM_RescaleSlope, "2", "rescale: RescaleSlope is missing in 1 of 5 images"},
                {DCM_RescaleIntercept, nullptr, "rescale: RescaleIntercept is missing in 1 of 5"},
                {DCM_BitsStored, nullptr, "bits: HighBit must be"},
                {DCM_PixelRepresentation, nullptr, "bits: PixelRepresentation is missing in 1 of 5"},
                {DCM_FrameOfReferenceUID, nullptr, "series: FrameOfReferenceUID is missing in 1 of 5"},
                {DCM_Modality, nullptr, "series: Modality is missing in 1 of 5"},
                {DCM_ImageType, nullptr, "series: ImageType is missing in 1 of 5"},
                {DCM_EchoTime, "12.5", "echo_time: EchoTime is missing in 1 of 5"},
                {DCM_PixelSpacing, nullptr, "spacing: PixelSpacing is missing"},
                {DCM_ImageOrientationPatient, nullptr, "orientation: ImageOrientationPatient is missing"},
                {DCM_PhotometricInterpretation, nullptr, "photometric: must be"}};
  for (const auto& c : kCases) {
    for (const int lacking : {0, 2, 4}) {
      const std::string folder = Path("case");
      std::filesystem::remove_all(folder);
      std::filesystem::create_directories(folder);
      DicomMaker maker(folder);
      for (int k = 0; k < 5; ++k) {
        const auto slice = maker.Slice({.z = 1.0 * k, .is_signed = true});
        if (c.value != nullptr) slice->getDataset()->putAndInsertString(c.tag, c.value);
        if (k == lacking) slice->getDataset()->findAndDeleteElement(c.tag);
        maker.Save(*slice, absl::StrCat(k));
      }
      const absl::StatusOr<DicomListing> listing = ListDicom(folder);
      ASSERT_THAT(listing, Succeeds());
      EXPECT_THAT(listing->volumes[0].status, Fails(Code::kInvalidArgument, c.named));
      for (const DicomEntry& entry : listing->volumes) EXPECT_FALSE(entry.status.ok()) << c.named;
    }
  }
}

TEST_F(DicomTest, ADefaultThatIsTheNeighboursValueMayBeLeftOut) {
  for (int k = 0; k < 5; ++k) {
    const auto slice = maker_.Slice({.z = 1.0 * k});
    if (k == 3) slice->getDataset()->findAndDeleteElement(DCM_RescaleSlope);
    maker_.Save(*slice, absl::StrCat(k));
  }
  EXPECT_EQ(SizeString(ReadOk().volume.geometry), "12x10x5");
  const auto inverted = maker_.Slice({.z = 5});
  inverted->getDataset()->putAndInsertString(DCM_PhotometricInterpretation, "MONOCHROME1");
  maker_.Save(*inverted, "inverted");
  EXPECT_THAT(Read(), Fails(Code::kInvalidArgument, "photometric: 1 of 6 images of the series are MONOCHROME1"));
}

// By mistake two patients, or two studies, have one series.
TEST_F(DicomTest, NoVolumeIsOfTwoPatients) {
  for (const DcmTagKey& tag : {DCM_PatientID, DCM_PatientName, DCM_StudyInstanceUID}) {
    const std::string folder = Path("case");
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
    DicomMaker maker(folder);
    for (int k = 0; k < 10; ++k) {
      const auto slice = maker.Slice({.z = 1.0 * k});
      slice->getDataset()->putAndInsertString(tag, k < 5 ? "1" : "2");
      maker.Save(*slice, absl::StrCat(k));
    }
    EXPECT_THAT(ReadDicom(folder), Fails(Code::kInvalidArgument, "patient: the files of the series"));
    const absl::StatusOr<DicomListing> listing = ListDicom(folder);
    ASSERT_THAT(listing, Succeeds());
    for (const DicomEntry& entry : listing->volumes) EXPECT_EQ(entry.files, 5);
    const std::string series = listing->volumes[0].provenance.series;
    EXPECT_THAT(ReadDicom(folder, {.series = series}),
                Fails(Code::kInvalidArgument, "patient: the files of the series"));
  }
  // The same name, written otherwise.
  std::filesystem::remove_all(Path("case"));
  for (int k = 0; k < 4; ++k) {
    const auto slice = maker_.Slice({.z = 1.0 * k});
    slice->getDataset()->putAndInsertString(DCM_PatientName, k < 2 ? "Doe^Jane" : "DOE^JANE^^");
    maker_.Save(*slice, absl::StrCat(k));
  }
  EXPECT_EQ(SizeString(ReadOk().volume.geometry), "12x10x4");
}

TEST_F(DicomTest, ImagesSayHowManyThereAre) {
  const auto series = [&](int count, int acquisitions, const char* announced) {
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) std::filesystem::remove_all(entry);
    for (int k = 0; k < count; ++k) {
      const auto slice = maker_.Slice({.z = 1.0 * k});
      slice->getDataset()->putAndInsertString(DCM_ImagesInAcquisition, announced);
      slice->getDataset()->putAndInsertString(DCM_AcquisitionNumber, absl::StrCat(k % acquisitions).c_str());
      maker_.Save(*slice, absl::StrCat(k));
    }
    return List().volumes[0];
  };
  DicomEntry entry = series(6, 1, "10");
  EXPECT_EQ(entry.series_images, 6);
  EXPECT_EQ(entry.announced_images, 10);
  EXPECT_THAT(entry.notes, ElementsAre(HasSubstr("fewer images")));
  entry = series(10, 1, "10");
  EXPECT_EQ(entry.announced_images, 10);
  EXPECT_THAT(entry.notes, IsEmpty());
  // An acquisition for each image, as some scanners number them; and two of which one lacks images.
  EXPECT_EQ(series(6, 6, "1").announced_images, 6);
  EXPECT_EQ(series(6, 6, "6").announced_images, 6);
  entry = series(7, 2, "4");
  EXPECT_EQ(entry.series_images, 7);
  EXPECT_EQ(entry.announced_images, 8);
}

TEST_F(DicomTest, AWholeFileIsToldFromACutOne) {
  const std::string whole = maker_.Save(*maker_.Slice({}), "whole");
  EXPECT_THAT(CheckWholeFile(whole), Succeeds());
  const std::string bytes = Get(whole);
  const size_t pixels = bytes.find(std::string("\xe0\x7f\x10\x00", 4));
  ASSERT_NE(pixels, std::string::npos);
  for (const size_t size : {bytes.size() - 1, bytes.size() - 100, pixels + 12, pixels}) {
    EXPECT_THAT(CheckWholeFile(Put("cut", bytes.substr(0, size))), Fails(Code::kDataLoss, "data: ")) << size;
  }
  EXPECT_THAT(CheckWholeFile(Put("text", "no DICOM")), Fails(Code::kNotFound, "file: is not DICOM"));
}

TEST_F(DicomTest, ComparesMoreThanTwoFramesOfAPosition) {
  const auto pixel = [](int x, int y) { return static_cast<uint16_t>(x + y); };
  for (int copy = 0; copy < 4; ++copy) {
    for (const int z : {0, 1, 2})
      maker_.Save(*maker_.Slice({.z = 1.0 * z, .pixel = pixel}), absl::StrCat(z, "_", copy));
  }
  EXPECT_THAT(ReadOk().notes, ElementsAre("slices: dropped 9 equal duplicates"));
  maker_.Save(*maker_.Slice({.z = 2, .pixel = [](int x, int y) { return static_cast<uint16_t>(x + y + (x == 7)); }}),
              "differs in a column");
  EXPECT_THAT(Read(), Fails(Code::kInvalidArgument, "slices: at 3 of the positions there are several, which differ"));
}

TEST_F(DicomTest, RefusesGantryTiltUnlessResampled) {
  // Each slice 2 mm on and 1 mm (two columns) to the side; the values are linear along x.
  SliceSpec spec{.columns = 20};
  for (int k = 0; k < 4; ++k) {
    spec.z = 2 * k;
    spec.x = -20 + k;
    spec.pixel = [k](int x, int y) { return static_cast<uint16_t>(1000 + 10 * (x + 2 * k) + 100 * y); };
    maker_.Save(*maker_.Slice(spec), absl::StrCat(k));
  }
  EXPECT_THAT(Read(), Fails(Code::kInvalidArgument, "slices: the stack is sheared by 26.6 degrees (gantry tilt)"));
  const DicomVolume v = ReadFolder({.resample = true});
  EXPECT_EQ(SizeString(v.volume.geometry), "26x10x4");
  for (int k = 0; k < 4; ++k) {
    for (int x = 0; x < 26; ++x) {
      const bool inside = x >= 2 * k && x < 20 + 2 * k;
      EXPECT_EQ(At(v, x, 3, k), inside ? 1000 + 10 * x + 300 - 1024 : -1000) << x << " " << k;
    }
  }
}

// ---- Grouping -------------------------------------------------------------------------------------------------------

TEST_F(DicomTest, SeveralSeriesMustBeChosen) {
  maker_.Series({}, 3, 1);
  DicomMaker other(folder_.string());
  other.Save(*other.Slice({.series = "1.2.3.4", .modality = "MR"}), "other");
  const DicomListing listing = List();
  ASSERT_EQ(listing.volumes.size(), 2U);
  EXPECT_EQ(listing.volumes[0].frames, 3);
  EXPECT_THAT(Read(), Fails(Code::kInvalidArgument,
                            "series: there are 2 volumes; choose one by its index or series: "
                            "1: CT 12x10x3, 0.5x0.75x1 mm, series "));
  EXPECT_EQ(ReadFolder({.series = "2"}).provenance.modality, "MR");
  EXPECT_EQ(ReadFolder({.series = listing.volumes[0].provenance.series.substr(0, 8)}).provenance.modality, "CT");
  EXPECT_EQ(ReadFolder({.series = listing.volumes[1].provenance.series}).provenance.modality, "MR");
  EXPECT_THAT(Read({.series = "3"}), Fails(Code::kNotFound, "series: there are 2 volumes"));
  EXPECT_THAT(Read({.series = "0123456789"}), Fails(Code::kNotFound, "series: no volume is of it"));
  EXPECT_THAT(Read({.series = "CT"}), Fails(Code::kInvalidArgument, "series: must be an index"));
}

TEST_F(DicomTest, SplitsPhasesThatCoverTheSamePositions) {
  for (int phase = 1; phase <= 2; ++phase) {
    for (int k = 0; k < 3; ++k) {
      const auto slice = maker_.Slice({.z = 1.0 * k});
      slice->getDataset()->putAndInsertString(DCM_AcquisitionNumber, absl::StrCat(phase).c_str());
      maker_.Save(*slice, absl::StrCat("phase", phase, "-", k));
    }
  }
  const DicomListing listing = List();
  ASSERT_EQ(listing.volumes.size(), 2U);
  for (const DicomEntry& entry : listing.volumes) EXPECT_EQ(SizeString(entry.geometry), "12x10x3");
}

TEST_F(DicomTest, KeepsBlocksOfAnAcquisitionTogether) {
  for (int k = 0; k < 6; ++k) {
    const auto slice = maker_.Slice({.z = 1.0 * k});
    slice->getDataset()->putAndInsertString(DCM_AcquisitionNumber, absl::StrCat(1 + k / 2).c_str());
    maker_.Save(*slice, absl::StrCat(k));
  }
  EXPECT_EQ(SizeString(ReadOk().volume.geometry), "12x10x6");
}

TEST_F(DicomTest, SplitsLocalisersOrientationsSizesAndEchoes) {
  maker_.Series({}, 3, 1);
  const auto localiser = maker_.Slice({.z = 3});
  localiser->getDataset()->putAndInsertString(DCM_ImageType, "ORIGINAL\\PRIMARY\\LOCALIZER");
  maker_.Save(*localiser, "localiser");
  maker_.Save(*maker_.Slice({.z = 3, .orientation = "1\\0\\0\\0\\0\\-1"}), "coronal");
  maker_.Save(*maker_.Slice({.columns = 14, .z = 3}), "wide");
  maker_.Save(*maker_.Slice({.z = 3, .spacing = "0.75\\0.51"}), "coarse");
  const auto echo = maker_.Slice({.z = 3});
  echo->getDataset()->putAndInsertString(DCM_EchoTime, "80");
  maker_.Save(*echo, "echo");
  const DicomListing listing = List();
  ASSERT_EQ(listing.volumes.size(), 6U);
  EXPECT_EQ(listing.volumes[0].frames, 3);
  EXPECT_EQ(Wrong(ReadFolder({.series = "1"})), 0);
}

TEST_F(DicomTest, ComparesNumbersNotTexts) {
  const auto one = maker_.Slice({.z = 0, .orientation = "1\\0\\0\\0\\1\\0", .spacing = "0.75\\0.5"});
  maker_.Save(*one, "one");
  const auto two =
      maker_.Slice({.z = 1, .orientation = "1.000000 \\ 0.0\\0\\-0.0\\+1.0\\0E0", .spacing = " 7.5e-1\\+.5"});
  maker_.Save(*two, "two");
  EXPECT_EQ(SizeString(ReadOk().volume.geometry), "12x10x2");
}

// A folder without one of its slices would be a volume that is silently too short.
TEST_F(DicomTest, ABrokenFileBreaksItsSeriesAlone) {
  maker_.Series({}, 4, 1);
  DicomMaker other(folder_.string());
  other.Save(*other.Slice({.series = "1.2.3.4"}), "other");
  const std::string bytes = Get(Path("image0"));
  Put("image0", bytes.substr(0, bytes.size() - 20));
  EXPECT_THAT(Read({.series = "1"}), Fails(Code::kDataLoss, "data: the file ends inside an element"));
  EXPECT_THAT(Read({.series = "2"}), Succeeds());
}

TEST_F(DicomTest, ADirectoryNamesTheFiles) {
  std::filesystem::create_directories(folder_ / "DISC");
  DicomMaker disc((folder_ / "DISC").string());
  disc.Series({}, 3, 1);
  for (int i = 0; i < 3; ++i) {
    std::filesystem::rename(folder_ / "DISC" / absl::StrCat("image", i), folder_ / "DISC" / absl::StrCat("IMAGE", i));
  }
  const auto save = [&](const char* second) {
    DcmFileFormat directory;
    for (const char* name : {"DISC\\IMAGE0", second, "DISC\\IMAGE2"}) {
      DcmItem* record = nullptr;
      directory.getDataset()->findOrCreateSequenceItem(DCM_DirectoryRecordSequence, record, -2);
      record->putAndInsertString(DCM_ReferencedFileID, name);
    }
    directory.getDataset()->putAndInsertString(DCM_SOPClassUID, UID_MediaStorageDirectoryStorage);
    directory.getDataset()->putAndInsertString(DCM_SOPInstanceUID, "1.2.3");
    return maker_.Save(directory, "DICOMDIR");
  };
  EXPECT_EQ(Wrong(ReadOk(save("DISC\\IMAGE1"))), 0);
  EXPECT_EQ(Wrong(ReadOk()), 0);  // the folder, with the directory in it
  for (const char* name : {"..\\secret", "/etc/passwd", "DISC\\.\\IMAGE1"}) {
    EXPECT_THAT(ReadDicom(save(name)), Fails(Code::kInvalidArgument, "file: the DICOMDIR names a file")) << name;
  }
  EXPECT_THAT(ReadDicom(save("DISC\\IMAGE9")), Fails(Code::kNotFound, ""));
  std::filesystem::create_symlink(folder_ / "DISC" / "IMAGE1", folder_ / "DISC" / "LINK");
  std::filesystem::create_directory_symlink(folder_ / "DISC", folder_ / "OTHER");
  for (const char* name : {"DISC\\LINK", "OTHER\\IMAGE1"}) {
    EXPECT_THAT(ReadDicom(save(name)), Fails(Code::kInvalidArgument, "behind a symbolic link")) << name;
  }
}

TEST_F(DicomTest, ATypeOfARecordIsACodeString) {
  maker_.Series({}, 1, 1);
  const auto save = [&](const std::string& type) {
    DcmFileFormat directory;
    DcmItem* record = nullptr;
    directory.getDataset()->findOrCreateSequenceItem(DCM_DirectoryRecordSequence, record, -2);
    record->putAndInsertString(DCM_DirectoryRecordType, type.c_str());
    record->putAndInsertString(DCM_ReferencedFileID, "IMAGE9");
    directory.getDataset()->putAndInsertString(DCM_SOPClassUID, UID_MediaStorageDirectoryStorage);
    directory.getDataset()->putAndInsertString(DCM_SOPInstanceUID, "1.2.3");
    return maker_.Save(directory, "DICOMDIR");
  };
  EXPECT_THAT(ReadDicom(save(std::string(16, 'A'))), Fails(Code::kNotFound, ""));
  for (const char* type : {"ABCDEFGHIJKLMNOPQR", "A\\BCDEFGHIJKLMNOPQRS", "ABCDEFGHIJKLMNOPQRSTUVWXYZ\\A"}) {
    EXPECT_THAT(ReadDicom(save(type)), Fails(Code::kDataLoss, "data: the type of a directory record is too long"))
        << type;
  }
}

}  // namespace
}  // namespace intrawarp::io
