// SPDX-License-Identifier: Apache-2.0
// The rules of the reader, each on files made for it.
#include "io/dicom/dicom.h"

#include <sys/resource.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/pixel_type.h"
#include "io/dicom/mosaic.h"
#include "tests/io/dicom/dicom_maker.h"
#include "tests/io/io_test.h"

namespace intrawarp::io {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Code = absl::StatusCode;

class DicomTest : public FileTest {
 protected:
  DicomTest() : maker_(folder_.string()) {}

  absl::StatusOr<DicomVolume> Read(const DicomOptions& options = {}) const {
    return ReadDicom(folder_.string(), options);
  }
  DicomVolume ReadOk(const std::string& path, const DicomOptions& options = {}) const {
    absl::StatusOr<DicomVolume> volume = ReadDicom(path, options);
    EXPECT_THAT(volume, Succeeds());
    return volume.ok() ? *std::move(volume) : DicomVolume();
  }
  DicomVolume ReadOk() const { return ReadOk(folder_.string()); }
  DicomVolume ReadFolder(const DicomOptions& options) const { return ReadOk(folder_.string(), options); }
  DicomListing List() const {
    const absl::StatusOr<DicomListing> listing = ListDicom(folder_.string());
    EXPECT_THAT(listing, Succeeds());
    return listing.ok() ? *listing : DicomListing();
  }

  static double At(const DicomVolume& v, int x, int y, int z) {
    const Int3 size = v.volume.geometry.size;
    return ToFloat(v.volume).at((static_cast<size_t>(z) * size.y + y) * size.x + x);
  }
  // The number of voxels that are not those of `Series` with the default pixels.
  static int64_t Wrong(const DicomVolume& v, double intercept = -1024) {
    const std::vector<float> values = ToFloat(v.volume);
    const Int3 size = v.volume.geometry.size;
    int64_t wrong = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const int x = static_cast<int>(i % size.x), y = static_cast<int>(i / size.x % size.y);
      const int z = static_cast<int>(i / size.x / size.y);
      wrong += values[i] != static_cast<float>(7 * x + 100 * y + z + intercept);
    }
    return wrong;
  }

  DicomMaker maker_;
};

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

// ---- Intensities ----------------------------------------------------------------------------------------------------

TEST_F(DicomTest, RescalesEachSliceByItself) {
  for (int k = 0; k < 3; ++k) {
    const auto slice = maker_.Slice({.z = 1.0 * k, .modality = "PT"});
    slice->getDataset()->putAndInsertString(DCM_RescaleSlope, absl::StrCat(0.5 * (k + 1)).c_str());
    slice->getDataset()->putAndInsertString(DCM_RescaleIntercept, "0");
    maker_.Save(*slice, absl::StrCat(k));
  }
  const DicomVolume v = ReadOk();
  EXPECT_EQ(v.volume.pixel_type, PixelType::kFloat32);
  for (int k = 0; k < 3; ++k) EXPECT_EQ(At(v, 2, 3, k), 314 * 0.5 * (k + 1));
}

TEST_F(DicomTest, ExtendsTheSignOfTwelveBits) {
  // The bits above the stored ones hold something else (an overlay).
  const auto pixel = [](int x, int y) { return static_cast<uint16_t>(0xf000 | ((x - 6 - 100 * y) & 0xfff)); };
  const DicomVolume v =
      ReadOk(maker_.Save(*maker_.Slice({.modality = "MR", .is_signed = true, .pixel = pixel}), "one"));
  EXPECT_EQ(v.volume.pixel_type, PixelType::kInt16);
  EXPECT_EQ(At(v, 0, 0, 0), -6);
  EXPECT_EQ(At(v, 11, 0, 0), 5);
  EXPECT_EQ(At(v, 1, 9, 0), -905);
}

TEST_F(DicomTest, TakesStoredBitsFromBelowTheHighBit) {
  const auto pixel = [](int x, int y) { return static_cast<uint16_t>((7 * x + 100 * y) << 4 | 0xf); };
  EXPECT_EQ(Wrong(ReadOk(maker_.Save(*maker_.Slice({.high_bit = 15, .pixel = pixel}), "one"))), 0);
  const auto bad = maker_.Slice({.bits_stored = 12, .high_bit = 10});
  EXPECT_THAT(ReadDicom(maker_.Save(*bad, "two")), Fails(Code::kInvalidArgument, "bits: HighBit must be"));
}

TEST_F(DicomTest, DoesNotInvertMonochrome1) {
  const auto slice = maker_.Slice({});
  slice->getDataset()->putAndInsertString(DCM_PhotometricInterpretation, "MONOCHROME1");
  const DicomVolume v = ReadOk(maker_.Save(*slice, "one"));
  EXPECT_EQ(Wrong(v), 0);
  EXPECT_THAT(v.notes, ElementsAre(HasSubstr("MONOCHROME1")));
}

TEST_F(DicomTest, PaddingBecomesAir) {
  const auto pixel = [](int x, int y) { return static_cast<uint16_t>(x == 0 ? 0 : 900 + x + y); };
  for (const std::string modality : {"CT", "MR"}) {
    const auto slice = maker_.Slice({.modality = modality, .pixel = pixel});
    slice->getDataset()->putAndInsertUint16(DCM_PixelPaddingValue, 0);
    const std::string path = maker_.Save(*slice, modality);
    const DicomVolume v = ReadOk(path);
    EXPECT_EQ(At(v, 0, 4, 0), modality == "CT" ? -1000 : 901);
    EXPECT_EQ(At(v, 1, 4, 0), modality == "CT" ? -119 : 905);
    EXPECT_THAT(v.notes, ElementsAre("padding: 10 voxels became air"));
    EXPECT_EQ(At(ReadOk(path, {.keep_padding = true}), 0, 4, 0), modality == "CT" ? -1024 : 0);
  }
}

TEST_F(DicomTest, RefusesColourAndTables) {
  const auto palette = maker_.Slice({});
  palette->getDataset()->putAndInsertString(DCM_PhotometricInterpretation, "PALETTE COLOR");
  EXPECT_THAT(ReadDicom(maker_.Save(*palette, "one")), Fails(Code::kUnimplemented, "photometric: palette"));
  const auto colour = maker_.Slice({});
  colour->getDataset()->putAndInsertUint16(DCM_SamplesPerPixel, 3);
  EXPECT_THAT(ReadDicom(maker_.Save(*colour, "two")), Fails(Code::kUnimplemented, "photometric: colour"));
  const auto table = maker_.Slice({});
  DcmItem* item = nullptr;
  table->getDataset()->findOrCreateSequenceItem(DCM_ModalityLUTSequence, item, -2);
  EXPECT_THAT(ReadDicom(maker_.Save(*table, "three")), Fails(Code::kUnimplemented, "rescale: a modality lookup table"));
}

// ---- Faults of headers ----------------------------------------------------------------------------------------------

TEST_F(DicomTest, NamesTheFieldAtFault) {
  const struct {
    DcmTagKey tag;
    const char* value;
    const char* message;
  } kFaults[] = {
      {DCM_ImagePositionPatient, "1\\2", "position: ImagePositionPatient has 2 values, must have 3"},
      {DCM_ImagePositionPatient, "1\\2\\x", "position: ImagePositionPatient is not a finite number"},
      {DCM_ImagePositionPatient, "1\\2\\1e9", "position: is more than 10 km away"},
      {DCM_ImagePositionPatient, "", "position: ImagePositionPatient is missing"},
      {DCM_ImageOrientationPatient, "1\\0\\0\\0\\2\\0", "orientation: the axes must be of unit length"},
      {DCM_ImageOrientationPatient, "1\\0\\0\\0.6\\0.8\\0", "orientation: the axes must be of unit length"},
      {DCM_ImageOrientationPatient, "", "orientation: ImageOrientationPatient is missing"},
      {DCM_PixelSpacing, "0\\1", "spacing: PixelSpacing must be from"},
      {DCM_PixelSpacing, "0,5\\0,5", "spacing: PixelSpacing is not a finite number"},
      {DCM_PixelSpacing, "", "spacing: PixelSpacing is missing"},
      {DCM_RescaleSlope, "0", "rescale: RescaleSlope is 0"},
      {DCM_RescaleSlope, "nan", "rescale: RescaleSlope is not a finite number"},
      {DCM_NumberOfFrames, "1A", "frames: NumberOfFrames is not a finite number"},
      {DCM_NumberOfFrames, "0", "frames: NumberOfFrames must be a whole number from 1"},
      {DCM_PhotometricInterpretation, "GREY", "photometric: must be MONOCHROME1 or MONOCHROME2"},
  };
  for (const auto& fault : kFaults) {
    const auto slice = maker_.Slice({});
    slice->getDataset()->putAndInsertString(fault.tag, fault.value);
    EXPECT_THAT(ReadDicom(maker_.Save(*slice, "one")), Fails(Code::kInvalidArgument, fault.message));
  }
  for (const auto& [tag, message] : {std::pair(DCM_Rows, "size: Rows must be"), {DCM_BitsStored, "bits: BitsStored"}}) {
    const auto slice = maker_.Slice({});
    slice->getDataset()->putAndInsertUint16(tag, 0);
    EXPECT_THAT(ReadDicom(maker_.Save(*slice, "one")), Fails(Code::kInvalidArgument, message));
  }
}

TEST_F(DicomTest, WhatIsNoImageIsNoVolume) {
  EXPECT_THAT(ReadDicom(Path("none")), Fails(Code::kNotFound, ""));
  EXPECT_THAT(ReadDicom(Put("text", "a text of more than sixteen bytes")),
              Fails(Code::kNotFound, "file: is not DICOM"));
  EXPECT_THAT(Read(), Fails(Code::kNotFound, "file: there is no DICOM"));
  DcmFileFormat plan;
  plan.getDataset()->putAndInsertString(DCM_SOPClassUID, UID_RTPlanStorage);
  plan.getDataset()->putAndInsertString(DCM_SOPInstanceUID, "1.2.3");
  EXPECT_THAT(ReadDicom(maker_.Save(plan, "plan")), Fails(Code::kInvalidArgument, "file: holds no image"));
  EXPECT_EQ(List().not_images, 1);
}

// ---- Transfer syntaxes ----------------------------------------------------------------------------------------------

class DicomSyntaxTest : public DicomTest, public testing::WithParamInterface<E_TransferSyntax> {};

TEST_P(DicomSyntaxTest, GivesTheSamePixels) {
  EXPECT_EQ(Wrong(ReadOk(maker_.Save(*maker_.Slice({}), "unsigned", GetParam()))), 0);
  const auto pixel = [](int x, int y) { return static_cast<uint16_t>(7 * x + 100 * y - 500); };
  const SliceSpec spec{.modality = "MR", .bits_stored = 16, .high_bit = 15, .is_signed = true, .pixel = pixel};
  EXPECT_EQ(Wrong(ReadOk(maker_.Save(*maker_.Slice(spec), "signed", GetParam())), -500), 0);
}

INSTANTIATE_TEST_SUITE_P(All, DicomSyntaxTest,
                         testing::Values(EXS_LittleEndianImplicit, EXS_LittleEndianExplicit, EXS_BigEndianExplicit,
                                         EXS_DeflatedLittleEndianExplicit, EXS_JPEGProcess14SV1, EXS_JPEGLSLossless,
                                         EXS_RLELossless),
                         [](const auto& info) { return absl::StrCat("Syntax", static_cast<int>(info.param)); });

std::vector<uint16_t> DefaultCells(int columns, int rows) {
  std::vector<uint16_t> cells;
  for (int y = 0; y < rows; ++y) {
    for (int x = 0; x < columns; ++x) cells.push_back(static_cast<uint16_t>(7 * x + 100 * y));
  }
  return cells;
}

TEST_F(DicomTest, DecodesJpeg2000) {
  const std::vector<uint8_t> stream = EncodeJpeg2000(DefaultCells(12, 10), 12, 10, 12, false);
  const auto save = [&](const SliceSpec& spec, const std::vector<std::vector<uint8_t>>& fragments) {
    return maker_.SaveEncapsulated(*maker_.Slice(spec), "one", EXS_JPEG2000LosslessOnly, fragments);
  };
  EXPECT_EQ(Wrong(ReadOk(save({}, {stream}))), 0);
  // One frame in two fragments.
  const auto middle = stream.begin() + 100;
  EXPECT_EQ(Wrong(ReadOk(save({}, {{stream.begin(), middle}, {middle, stream.end()}}))), 0);
  EXPECT_THAT(ReadDicom(save({.columns = 13}, {stream})), Fails(Code::kInvalidArgument, "size: the JPEG 2000 stream"));
  EXPECT_THAT(ReadDicom(save({}, {{stream.begin(), middle}})), Fails(Code::kDataLoss, "data: the JPEG 2000 stream"));
  std::vector<uint16_t> cells = DefaultCells(12, 10);
  for (uint16_t& cell : cells) cell = static_cast<uint16_t>(cell - 500);
  const std::vector<uint8_t> negative = EncodeJpeg2000(cells, 12, 10, 12, true);
  EXPECT_EQ(Wrong(ReadOk(save({.modality = "MR", .is_signed = true}, {negative})), -500), 0);
}

TEST_F(DicomTest, RefusesOtherSyntaxesByName) {
  const std::string path =
      maker_.SaveEncapsulated(*maker_.Slice({}), "one", EXS_MPEG4HighProfileLevel4_1, {{1, 2, 3, 4}});
  EXPECT_THAT(ReadDicom(path), Fails(Code::kUnimplemented, "transfer_syntax: MPEG-4"));
}

TEST_F(DicomTest, BrokenCompressedPixelsAreDataLoss) {
  for (const E_TransferSyntax syntax : {EXS_JPEGProcess14SV1, EXS_JPEGLSLossless, EXS_RLELossless}) {
    const std::string path = maker_.SaveEncapsulated(*maker_.Slice({}), "one", syntax, {{0xff, 0xd8, 1, 2, 3, 4}});
    EXPECT_THAT(ReadDicom(path), Fails(Code::kDataLoss, "data: ")) << syntax;
  }
  // A few bytes cannot stand for a gigabyte.
  const auto huge = maker_.Slice({});
  huge->getDataset()->putAndInsertUint16(DCM_Rows, 16000);
  huge->getDataset()->putAndInsertUint16(DCM_Columns, 16000);
  EXPECT_THAT(ReadDicom(maker_.SaveEncapsulated(*huge, "one", EXS_JPEG2000LosslessOnly, {{1, 2, 3, 4}})),
              Fails(Code::kDataLoss, "data: there are too few compressed bytes"));
}

// ---- Several frames -------------------------------------------------------------------------------------------------

// An enhanced file: frame f at position order[f], with a rescaling of its own when `scaled`.
std::unique_ptr<DcmFileFormat> Enhanced(DicomMaker& maker, const std::vector<int>& order, bool scaled) {
  auto file = maker.Slice({.rows = 10 * static_cast<int>(order.size()), .modality = "MR", .pixel = [&](int x, int y) {
                             return static_cast<uint16_t>(7 * x + 100 * (y % 10) + order[y / 10]);
                           }});
  DcmDataset& d = *file->getDataset();
  d.putAndInsertUint16(DCM_Rows, 10);
  d.putAndInsertString(DCM_NumberOfFrames, absl::StrCat(order.size()).c_str());
  for (const DcmTagKey& tag : {DCM_ImagePositionPatient, DCM_ImageOrientationPatient, DCM_PixelSpacing}) {
    d.findAndDeleteElement(tag);
  }
  DcmItem* shared = nullptr;
  d.findOrCreateSequenceItem(DCM_SharedFunctionalGroupsSequence, shared, 0);
  DcmItem* item = nullptr;
  shared->findOrCreateSequenceItem(DCM_PixelMeasuresSequence, item, 0);
  item->putAndInsertString(DCM_PixelSpacing, "0.75\\0.5");
  shared->findOrCreateSequenceItem(DCM_PlaneOrientationSequence, item, 0);
  item->putAndInsertString(DCM_ImageOrientationPatient, "1\\0\\0\\0\\1\\0");
  for (const int place : order) {
    DcmItem* frame = nullptr;
    d.findOrCreateSequenceItem(DCM_PerFrameFunctionalGroupsSequence, frame, -2);
    frame->findOrCreateSequenceItem(DCM_PlanePositionSequence, item, 0);
    item->putAndInsertString(DCM_ImagePositionPatient, absl::StrCat("-20\\30\\", 2 * place).c_str());
    frame->findOrCreateSequenceItem(DCM_PixelValueTransformationSequence, item, 0);
    item->putAndInsertString(DCM_RescaleSlope, scaled ? absl::StrCat(1 + place).c_str() : "1");
    item->putAndInsertString(DCM_RescaleIntercept, "0");
  }
  return file;
}

TEST_F(DicomTest, ReadsEnhancedMultiFrame) {
  for (const E_TransferSyntax syntax : {EXS_LittleEndianExplicit, EXS_RLELossless, EXS_JPEGProcess14SV1}) {
    const DicomVolume v = ReadOk(maker_.Save(*Enhanced(maker_, {2, 0, 3, 1}, false), "one", syntax));
    EXPECT_EQ(SizeString(v.volume.geometry), "12x10x4");
    EXPECT_EQ(v.volume.geometry.spacing, (Vec3d{0.5, 0.75, 2}));
    EXPECT_EQ(Wrong(v, 0), 0) << syntax;
  }
  const DicomVolume scaled = ReadOk(maker_.Save(*Enhanced(maker_, {1, 0}, true), "one"));
  EXPECT_EQ(At(scaled, 2, 3, 0), 314);
  EXPECT_EQ(At(scaled, 2, 3, 1), 2 * 315);
}

// Planes of 12x10 bits: pixel (x, y) of frame f is set where x + y + f is divisible by 3.
std::unique_ptr<DcmFileFormat> Segmentation(DicomMaker& maker, const std::vector<std::pair<int, int>>& segment_at) {
  std::vector<int> places;
  for (const auto& [segment, place] : segment_at) places.push_back(place);
  auto file = Enhanced(maker, places, false);
  DcmDataset& d = *file->getDataset();
  d.putAndInsertString(DCM_SOPClassUID, UID_SegmentationStorage);
  d.putAndInsertString(DCM_Modality, "SEG");
  d.putAndInsertString(DCM_SegmentationType, "BINARY");
  for (const DcmTagKey& tag : {DCM_BitsAllocated, DCM_BitsStored}) d.putAndInsertUint16(tag, 1);
  d.putAndInsertUint16(DCM_HighBit, 0);
  std::vector<Uint8> bits((120 * places.size() + 15) / 16 * 2);
  for (size_t i = 0; i < 120 * places.size(); ++i) {
    const size_t x = i % 12, y = i / 12 % 10, f = i / 120;
    if ((x + y + f) % 3 == 0) bits[i / 8] = static_cast<Uint8>(bits[i / 8] | 1 << i % 8);
  }
  d.findAndDeleteElement(DCM_PixelData);
  d.putAndInsertUint8Array(DCM_PixelData, bits.data(), bits.size());
  for (size_t f = 0; f < segment_at.size(); ++f) {
    DcmItem* frame = nullptr;
    DcmItem* item = nullptr;
    d.findAndGetSequenceItem(DCM_PerFrameFunctionalGroupsSequence, frame, static_cast<long>(f));
    frame->findOrCreateSequenceItem(DCM_SegmentIdentificationSequence, item, 0);
    item->putAndInsertUint16(DCM_ReferencedSegmentNumber, static_cast<Uint16>(segment_at[f].first));
  }
  return file;
}

TEST_F(DicomTest, ASegmentBecomesAMaskWithItsEmptyPlanes) {
  // Segment 1 at planes 0, 1 and 4 (2 mm apart, in no order), segment 2 at plane 3 alone.
  const auto file = Segmentation(maker_, {{1, 4}, {2, 3}, {1, 0}, {1, 1}});
  const std::string path = maker_.Save(*file, "one");
  const DicomListing listing = List();
  ASSERT_EQ(listing.volumes.size(), 2U);
  EXPECT_THAT(listing.volumes[0].notes, ElementsAre("segment 1"));
  const DicomVolume v = ReadFolder({.series = "1"});
  EXPECT_EQ(SizeString(v.volume.geometry), "12x10x5");
  EXPECT_EQ(v.volume.geometry.spacing.z, 2);
  EXPECT_EQ(v.volume.pixel_type, PixelType::kUint8);
  const int frame_at[5] = {2, 3, -1, -1, 0};
  for (int z = 0; z < 5; ++z) {
    for (int y = 0; y < 10; ++y) {
      for (int x = 0; x < 12; ++x) {
        EXPECT_EQ(At(v, x, y, z), frame_at[z] >= 0 && (x + y + frame_at[z]) % 3 == 0 ? 1 : 0);
      }
    }
  }
  EXPECT_EQ(SizeString(ReadFolder({.series = "2"}).volume.geometry), "12x10x1");

  const auto fractional = Segmentation(maker_, {{1, 0}});
  fractional->getDataset()->putAndInsertString(DCM_SegmentationType, "FRACTIONAL");
  EXPECT_THAT(ReadDicom(maker_.Save(*fractional, "one")), Fails(Code::kUnimplemented, "segmentation: fractional"));
  const auto uneven = Segmentation(maker_, {{1, 0}, {1, 2}, {1, 5}});
  EXPECT_THAT(ReadDicom(maker_.Save(*uneven, "one")), Fails(Code::kInvalidArgument, "multiple of 4 mm"));
}

TEST_F(DicomTest, FramesAndFunctionalGroupsMustAgree) {
  const auto file = Enhanced(maker_, {0, 1}, false);
  file->getDataset()->putAndInsertString(DCM_NumberOfFrames, "1");
  EXPECT_THAT(ReadDicom(maker_.Save(*file, "one")), Fails(Code::kInvalidArgument, "frames: there are 2 functional"));
  file->getDataset()->putAndInsertString(DCM_NumberOfFrames, "16000000");
  EXPECT_THAT(ReadDicom(maker_.Save(*file, "one")), Fails(Code::kResourceExhausted, "frames: more than"));
  const auto plain = maker_.Slice({});
  plain->getDataset()->putAndInsertString(DCM_NumberOfFrames, "2");
  EXPECT_THAT(ReadDicom(maker_.Save(*plain, "one")), Fails(Code::kUnimplemented, "frames: several frames without"));
}

std::string CsaWord(uint32_t v) { return std::string(reinterpret_cast<const char*>(&v), 4); }
std::string CsaTag(const std::string& name, const std::vector<std::string>& items) {
  std::string tag = name;
  tag.resize(64);
  tag +=
      CsaWord(1) + std::string("IS\0\0", 4) + CsaWord(6) + CsaWord(static_cast<uint32_t>(items.size())) + CsaWord(77);
  for (const std::string& item : items) {
    const uint32_t length = static_cast<uint32_t>(item.size());
    tag += CsaWord(length) + CsaWord(length) + CsaWord(77) + CsaWord(length) + item;
    tag.resize(tag.size() + (4 - length % 4) % 4);
  }
  return tag;
}

TEST_F(DicomTest, ReadsMosaics) {
  // Five tiles of 4x4 in a mosaic of 3x3; slices run against the normal.
  const auto pixel = [](int x, int y) {
    return static_cast<uint16_t>(100 * (x / 4 + 3 * (y / 4)) + 4 * (y % 4) + x % 4);
  };
  const auto slice = maker_.Slice({.columns = 12, .rows = 12, .spacing = "2\\2", .modality = "MR", .pixel = pixel});
  DcmDataset& d = *slice->getDataset();
  d.putAndInsertString(DCM_ImageType, "ORIGINAL\\PRIMARY\\M\\ND\\MOSAIC");
  d.putAndInsertString(DCM_SpacingBetweenSlices, "3.5");
  const std::string csa = std::string("SV10\4\3\2\1", 8) + CsaWord(2) + CsaWord(77) +
                          CsaTag("NumberOfImagesInMosaic", {"5"}) + CsaTag("SliceNormalVector", {"0", "0", "-1"});
  d.putAndInsertString(DcmTag(0x0029, 0x0010, EVR_LO), "SIEMENS CSA HEADER");
  d.putAndInsertUint8Array(DcmTag(0x0029, 0x1010, EVR_OB), reinterpret_cast<const Uint8*>(csa.data()), csa.size());
  const std::string path = maker_.Save(*slice, "one");
  const DicomVolume v = ReadOk(path);
  EXPECT_EQ(SizeString(v.volume.geometry), "4x4x5");
  EXPECT_EQ(v.volume.geometry.spacing, (Vec3d{2, 2, 3.5}));
  EXPECT_EQ(v.volume.geometry.origin, (Vec3d{-12, 38, -14}));
  for (int k = 0; k < 5; ++k) EXPECT_EQ(At(v, 3, 1, k), 100 * (4 - k) + 7);
  // Every prefix of the header is refused or read, and nothing beyond it is.
  for (size_t length = 0; length < csa.size(); ++length) {
    const auto status =
        dicom::ParseCsaMosaic(absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(csa.data()), length)).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << length;
  }
}

TEST_F(DicomTest, ReadsDoses) {
  auto file = maker_.Slice({.rows = 30, .modality = "RTDOSE", .pixel = [](int x, int y) {
                              return static_cast<uint16_t>(7 * x + 100 * (y % 10) + y / 10);
                            }});
  DcmDataset& d = *file->getDataset();
  d.putAndInsertUint16(DCM_Rows, 10);
  d.putAndInsertString(DCM_NumberOfFrames, "3");
  d.putAndInsertString(DCM_GridFrameOffsetVector, "0\\2\\4");
  d.putAndInsertString(DCM_DoseGridScaling, "0.5");
  const DicomVolume v = ReadOk(maker_.Save(*file, "one"));
  EXPECT_EQ(v.volume.geometry.spacing.z, 2);
  EXPECT_EQ(At(v, 2, 3, 2), 158);
  d.putAndInsertString(DCM_GridFrameOffsetVector, "0\\2");
  EXPECT_THAT(ReadDicom(maker_.Save(*file, "one")), Fails(Code::kInvalidArgument, "frames: GridFrameOffsetVector"));
}

// ---- Hostile files --------------------------------------------------------------------------------------------------

TEST_F(DicomTest, TruncatedAnywhereIsRefused) {
  const std::string bytes = Get(maker_.Save(*maker_.Slice({}), "whole"));
  std::filesystem::remove(Path("whole"));
  for (size_t length = 0; length < bytes.size(); length += length < 900 ? 1 : 17) {
    const absl::StatusOr<DicomVolume> v = ReadDicom(Put("part", bytes.substr(0, length)));
    EXPECT_FALSE(v.ok()) << length;
  }
}

// An element of explicit VR, little endian, with a long length.
std::string LongElement(uint16_t group, uint16_t element, const std::string& vr, uint32_t length) {
  std::string bytes(12, '\0');
  std::memcpy(bytes.data(), &group, 2);
  std::memcpy(bytes.data() + 2, &element, 2);
  std::memcpy(bytes.data() + 4, vr.data(), 2);
  std::memcpy(bytes.data() + 8, &length, 4);
  return bytes;
}

// The most bytes that were ever resident.
int64_t PeakMemory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

TEST_F(DicomTest, HostileLengthsTakeNoMemory) {
  const std::string bytes = Get(maker_.Save(*maker_.Slice({}), "whole"));
  const size_t at = bytes.find(std::string("\xe0\x7f\x10\0OW", 6));
  ASSERT_NE(at, std::string::npos);
  const int64_t before = PeakMemory();
  for (const uint32_t length : {0x7ffffffeU, 0xfffffff0U, 0xffffffffU}) {
    const std::string hostile = bytes.substr(0, at) + LongElement(0x7fe0, 0x0010, "OW", length) + bytes.substr(at + 12);
    EXPECT_FALSE(ReadDicom(Put("hostile", hostile)).ok()) << length;
    const std::string early = bytes.substr(0, at) + LongElement(0x7001, 0x0010, "OB", length) + bytes.substr(at);
    EXPECT_FALSE(ReadDicom(Put("hostile", early)).ok()) << length;
  }
  for (const auto& [rows, frames] : {std::pair(65535, "16777216"), {65535, "1"}}) {
    const auto slice = Enhanced(maker_, {0}, false);
    slice->getDataset()->findAndDeleteElement(DCM_PerFrameFunctionalGroupsSequence);
    slice->getDataset()->putAndInsertUint16(DCM_Rows, static_cast<Uint16>(rows));
    slice->getDataset()->putAndInsertUint16(DCM_Columns, 65535);
    slice->getDataset()->putAndInsertString(DCM_NumberOfFrames, frames);
    EXPECT_FALSE(ReadDicom(maker_.Save(*slice, "hostile")).ok());
  }
  EXPECT_LT(PeakMemory() - before, 200 << 20);
}

// The most address space that the process ever had.
int64_t PeakAddressSpace() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmPeak:", 0) == 0) return std::stoll(line.substr(7)) * 1024;
  }
  return 0;
}

// The four of `bytes` at `at` become a length that the file has no room for.
void ExpectLengthRefused(const std::string& path, std::string bytes, size_t at, bool is_big) {
  for (const uint32_t length : {0xff000054U, 0x7ffffff0U, 0x40000000U}) {
    const int64_t before = PeakAddressSpace();
    ASSERT_GT(before, 0);
    for (size_t i = 0; i < 4; ++i) bytes[at + i] = static_cast<char>(length >> 8 * (is_big ? 3 - i : i));
    std::ofstream(path, std::ios::binary) << bytes;
    EXPECT_THAT(ReadDicom(path), Fails(Code::kDataLoss, "data: the file ends inside an element"));
    EXPECT_LT(PeakAddressSpace() - before, int64_t{200} << 20) << length;
  }
}

TEST_F(DicomTest, AFragmentLongerThanItsFileTakesNoMemory) {
  const std::vector<uint8_t> fragment(16, 7);
  const std::string path = maker_.SaveEncapsulated(*maker_.Slice({}), "one", EXS_RLELossless, {fragment});
  const std::string bytes = Get(path);
  const size_t at = bytes.find(std::string("\xfe\xff\x00\xe0\x10\0\0\0", 8));
  ASSERT_NE(at, std::string::npos);
  ExpectLengthRefused(path, bytes, at + 4, /*is_big=*/false);
}

TEST_F(DicomTest, AValueLongerThanItsFileTakesNoMemory) {
  struct Case {
    E_TransferSyntax syntax;
    std::string pixels;  // tag, and VR
    bool is_big;
  };
  for (const auto& [syntax, pixels, is_big] :
       {Case{EXS_LittleEndianExplicit, std::string("\xe0\x7f\x10\0OW\0\0", 8), false},
        Case{EXS_LittleEndianImplicit, std::string("\xe0\x7f\x10\0", 4), false},
        Case{EXS_BigEndianExplicit, std::string("\x7f\xe0\0\x10OW\0\0", 8), true}}) {
    const std::string path = maker_.Save(*maker_.Slice({}), "one", syntax);
    EXPECT_TRUE(ReadDicom(path).ok());
    const std::string bytes = Get(path);
    const size_t at = bytes.find(pixels);
    ASSERT_NE(at, std::string::npos);
    ExpectLengthRefused(path, bytes, at + pixels.size(), is_big);
  }
}

// 0xfe000000 in one byte order, and 254 in the other.
constexpr char kFarLength[] = "\0\0\0\xfe";
constexpr char kFarLengthBig[] = "\xfe\0\0\0";

void ExpectNoMemory(const std::string& path, const testing::Matcher<absl::StatusOr<DicomVolume>>& outcome) {
  const int64_t before = PeakAddressSpace();
  ASSERT_GT(before, 0);
  EXPECT_THAT(ReadDicom(path), outcome);
  EXPECT_LT(PeakAddressSpace() - before, int64_t{200} << 20);
}

std::string Bytes(const char* bytes, size_t size) { return {bytes, size}; }

// Without the preamble: the element of the group's length, and what it counts.
std::string MetaHeader(const std::string& file) {
  uint32_t length = 0;
  std::memcpy(&length, file.data() + 140, 4);
  return file.substr(132, 12 + length);
}

TEST_F(DicomTest, ATagThatReadsLikeAShortLengthIsATag) {
  // A group length, and an implicit element (0000,0400) or (0000,0004).
  for (const char* tag : {"\0\0\0\4", "\0\0\4\0"}) {
    const std::string bytes =
        Bytes("\2\0\0\0\0\0\0\0", 8) + Bytes(tag, 4) + Bytes(kFarLength, 4) + std::string(20, 'x');
    ExpectNoMemory(Put("hostile", bytes), Fails(Code::kDataLoss, "data: the file ends inside an element"));
  }
}

TEST_F(DicomTest, AnUnknownVrHasALongLength) {
  const std::string bytes = Get(maker_.Save(*maker_.Slice({}), "one"));
  std::string element = LongElement(0x0009, 0x1010, "ZZ", 0xfe000000);
  element[6] = 4;  // reserved
  ExpectNoMemory(Put("one", bytes + element + std::string(20, 'x')),
                 Fails(Code::kDataLoss, "data: the file ends inside an element"));
}

TEST_F(DicomTest, AGuessedByteOrderIsThatOfLengths) {
  std::string bytes = Get(maker_.Save(*maker_.Slice({.rows = 40}), "one", EXS_BigEndianExplicit));
  const std::string uid = "1.2.840.10008.1.2.2";
  const size_t at = bytes.find(uid), pixels = bytes.find(Bytes("\x7f\xe0\0\x10OW\0\0", 8));
  ASSERT_NE(at, std::string::npos);
  ASSERT_NE(pixels, std::string::npos);
  bytes[at + uid.size() - 1] = '9';
  EXPECT_THAT(ReadDicom(Put("one", bytes)), Fails(Code::kUnimplemented, "transfer_syntax: is not known"));
  bytes.replace(pixels + 8, 4, kFarLengthBig, 4);
  ExpectNoMemory(Put("one", bytes), Fails(Code::kDataLoss, "data: the file ends inside an element"));
}

TEST_F(DicomTest, AMetaHeaderMayBeBigEndian) {
  const std::string bytes =
      std::string(128, '\0') + "DICM" + Bytes("\0\2\0\1OB\0\0", 8) + Bytes(kFarLengthBig, 4) + std::string(300, '\0');
  ExpectNoMemory(Put("hostile", bytes), Fails(Code::kDataLoss, "data: the file ends inside an element"));
}

TEST_F(DicomTest, AnUnknownSequenceInABigEndianDataSetIsRefused) {
  // Its items are little endian (CP-246).
  const std::string bytes = Get(maker_.Save(*maker_.Slice({.rows = 40}), "one", EXS_BigEndianExplicit));
  const size_t pixels = bytes.find(Bytes("\x7f\xe0\0\x10OW\0\0", 8));
  ASSERT_NE(pixels, std::string::npos);
  const std::string item = Bytes("\xfe\xff\0\xe0\xff\xff\xff\xff\x08\0\x60\0", 12) + Bytes(kFarLength, 4);
  for (const char* tag : {"\x70\1\0\x10", "\xff\xfe\xe0\1"}) {
    std::string hostile = bytes;
    hostile.insert(pixels, Bytes(tag, 4) + Bytes("UN\0\0\xff\xff\xff\xff", 8) + item);
    ExpectNoMemory(Put("one", hostile), Fails(Code::kUnimplemented, "transfer_syntax: big endian, with a sequence"));
  }
}

TEST_F(DicomTest, DcmtkInflatesNothing) {
  const auto slice = maker_.Slice({});
  const std::string deflated = Get(maker_.Save(*slice, "one", EXS_DeflatedLittleEndianExplicit));
  EXPECT_THAT(ReadDicom(Put("one", deflated.substr(132))), Succeeds());
  const std::string plain = Get(maker_.Save(*slice, "one"));
  const std::string data_set = plain.substr(132 + MetaHeader(plain).size()) +
                               LongElement(0x7fe1, 0x1010, "OB", 0xfe000000) + std::string(20, 'x');
  // One stored block.
  std::string block(5, '\1');
  for (size_t i = 0; i < 2; ++i) {
    block[1 + i] = static_cast<char>(data_set.size() >> 8 * i);
    block[3 + i] = static_cast<char>(~data_set.size() >> 8 * i);
  }
  std::string meta = MetaHeader(deflated);
  ExpectNoMemory(Put("one", meta + block + data_set + "x"),
                 Fails(Code::kDataLoss, "data: the file ends inside an element"));
  const size_t at = meta.find(UID_DeflatedExplicitVRLittleEndianTransferSyntax);
  ASSERT_NE(at, std::string::npos);
  const std::string jpip = UID_JPIPReferencedDeflateTransferSyntax;
  meta.replace(at, jpip.size(), jpip);
  ExpectNoMemory(Put("one", meta + block + data_set + "x"),
                 Fails(Code::kUnimplemented, "transfer_syntax: compressed as a whole"));
}

TEST_F(DicomTest, AnImplicitLengthThatReadsLikeAVrIsALength) {
  // An implicit directory record, whose type has 0x15343 bytes: "CS" and 1.
  const std::string item = Bytes("\4\0\x20\x12\xff\xff\xff\xff\xfe\xff\0\xe0\xff\xff\xff\xff", 16);
  const std::string type = Bytes("\4\0\x30\x14\x43S\1\0", 8) + std::string(0x15343, 'A');
  const std::string bytes = Bytes("\x08\0\x05\0\0\0\0\0", 8) + item + type;
  EXPECT_THAT(ReadDicom(Put("hostile", bytes)),
              Fails(Code::kDataLoss, "data: the type of a directory record is too long"));
}

TEST_F(DicomTest, FourBytesOfAValueAreNoLength) {
  const auto slice = maker_.Slice({});
  DcmDataset& d = *slice->getDataset();
  d.putAndInsertUint16(DCM_RegionSpatialFormat, 1);
  d.putAndInsertUint32(DCM_SimpleFrameList, 0xfffffff0U);
  d.putAndInsertUint32(DCM_ReferencedContentItemIdentifier, 0x7fffffffU);
  for (const E_TransferSyntax syntax : {EXS_LittleEndianExplicit, EXS_LittleEndianImplicit, EXS_BigEndianExplicit}) {
    const absl::StatusOr<DicomVolume> v = ReadDicom(maker_.Save(*slice, "one", syntax));
    EXPECT_TRUE(v.ok()) << v.status();
  }
}

TEST_F(DicomTest, DeepNestingIsRefused) {
  const std::string bytes = Get(maker_.Save(*maker_.Slice({}), "whole"));
  const size_t at = bytes.find(std::string("\xe0\x7f\x10\0OW", 6));
  std::string nest;
  for (int level = 0; level < 200000; ++level) {
    nest += LongElement(0x7001, 0x0010, "SQ", 0xffffffff) + std::string("\xfe\xff\x00\xe0\xff\xff\xff\xff", 8);
  }
  EXPECT_THAT(ReadDicom(Put("hostile", bytes.substr(0, at) + nest)), Fails(Code::kResourceExhausted, "nesting: "));
  // A few levels, as real files have them, are fine.
  std::string shallow, end;
  for (int level = 0; level < 12; ++level) {
    shallow += LongElement(0x7001, 0x0010, "SQ", 0xffffffff) + std::string("\xfe\xff\x00\xe0\xff\xff\xff\xff", 8);
    end += std::string("\xfe\xff\x0d\xe0\0\0\0\0\xfe\xff\xdd\xe0\0\0\0\0", 16);
  }
  EXPECT_THAT(ReadDicom(Put("fine", bytes.substr(0, at) + shallow + end + bytes.substr(at))), Succeeds());
}

TEST_F(DicomTest, ADeflatedBombIsRefused) {
  // A megabyte of zeros in a private element packs into a kilobyte.
  const auto slice = maker_.Slice({});
  const std::vector<Uint8> zeros(1 << 20);
  slice->getDataset()->putAndInsertUint8Array(DcmTag(0x7001, 0x0010, EVR_OB), zeros.data(), zeros.size());
  const std::string path = maker_.Save(*slice, "bomb", EXS_DeflatedLittleEndianExplicit);
  EXPECT_THAT(ReadDicom(path), Succeeds());
  EXPECT_THAT(ReadDicom(path, {.limits = {.max_file_bytes = 100000}}),
              Fails(Code::kResourceExhausted, "file: inflates to more than 100000 bytes"));
  EXPECT_THAT(ReadDicom(path, {.limits = {.max_inflated_bytes = 100000, .max_inflation = 10}}),
              Fails(Code::kResourceExhausted, "the limit for its size"));
  // The room that it expands to is asked for before it is there.
  std::vector<int64_t> asked;
  int64_t taken = 0;
  DicomOptions options;
  options.limits.room = [&](int64_t bytes) -> absl::StatusOr<std::shared_ptr<const void>> {
    asked.push_back(bytes);
    taken += bytes;
    if (taken > int64_t{2} << 20) return absl::ResourceExhaustedError("no room");
    return std::shared_ptr<const void>(&taken, [&taken, bytes](const void*) { taken -= bytes; });
  };
  EXPECT_THAT(ReadDicom(path, options), Fails(Code::kResourceExhausted, "no room"));
  ASSERT_EQ(asked.size(), 2);
  EXPECT_EQ(asked[0], 2 * static_cast<int64_t>(std::filesystem::file_size(path)));
  EXPECT_GT(asked[1], int64_t{2} << 20);
  EXPECT_EQ(taken, asked[1]);
  taken = -(int64_t{1} << 30);
  EXPECT_THAT(ReadDicom(path, options), Succeeds());
  EXPECT_EQ(taken, -(int64_t{1} << 30));
  const std::string bytes = Get(path);
  EXPECT_THAT(ReadDicom(Put("cut", bytes.substr(0, bytes.size() - 200))), Fails(Code::kDataLoss, "data: the deflated"));
}

}  // namespace
}  // namespace intrawarp::io
