// SPDX-License-Identifier: Apache-2.0
// Derived series: images and PET in the fixed frame, as this library reads them back.
#include "io/dicom/derived_series.h"

#include <dcmtk/config/osconfig.h>
#include <dcmtk/dcmdata/dctk.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "io/dicom/dicom.h"
#include "io/dicom/reference.h"
#include "tests/io/dicom/dicom_maker.h"
#include "tests/io/dicom/objects_fixture.h"

namespace intrawarp::io {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(DicomObjectsTest, UidsAreNewRandomAndWithoutARoot) {
  std::set<std::string> uids;
  for (int i = 0; i < 1000; ++i) {
    const std::string uid = NewDicomUid();
    EXPECT_TRUE(absl::StartsWith(uid, "2.25.")) << uid;
    EXPECT_LE(uid.size(), 44U);
    EXPECT_NE(uid[5], '0');
    uids.insert(uid);
  }
  EXPECT_EQ(uids.size(), 1000U);
}

TEST_F(DicomObjectsTest, ADerivedSeriesIsTheVolumeInTheFixedFrame) {
  for (const Geometry& grid : Grids({11, 7, 5})) {
    std::filesystem::remove_all(folder_ / "out");
    const std::vector<float> values = Ramp(grid);
    ASSERT_THAT(WriteDerivedSeries(Path("out/"), grid, values, Reference("fixed"), Reference("moving")), Succeeds());
    const absl::StatusOr<DicomVolume> read = ReadDicom(Path("out"));
    ASSERT_THAT(read, Succeeds());
    EXPECT_EQ(read->provenance.modality, "CT");
    EXPECT_EQ(read->provenance.frame_of_reference, ReadDicom(Path("fixed"))->provenance.frame_of_reference);
    EXPECT_NE(read->provenance.series, ReadDicom(Path("moving"))->provenance.series);
    EXPECT_EQ(read->volume.rescale_intercept, -1024);
    // Planes of a left-handed grid come back in the other order, each at its place.
    const std::vector<float> back = ToFloat(read->volume);
    const AffineMap to_index = PhysicalToIndex(read->volume.geometry), to_physical = IndexToPhysical(grid);
    ASSERT_EQ(back.size(), values.size());
    int64_t i = 0;
    for (int z = 0; z < grid.size.z; ++z) {
      for (int y = 0; y < grid.size.y; ++y) {
        for (int x = 0; x < grid.size.x; ++x, ++i) {
          const Vec3d index = to_index(to_physical({1.0 * x, 1.0 * y, 1.0 * z}));
          const Int3 n = {static_cast<int>(std::lround(index.x)), static_cast<int>(std::lround(index.y)),
                          static_cast<int>(std::lround(index.z))};
          ASSERT_LT(Distance(index, {1.0 * n.x, 1.0 * n.y, 1.0 * n.z}), 1e-3);
          ASSERT_EQ(back[(n.z * grid.size.y + n.y) * grid.size.x + n.x], std::round(values[i]));
        }
      }
    }
  }
}

TEST_F(DicomObjectsTest, ADerivedImageNamesItsSources) {
  const DicomReference fixed = Reference("fixed"), moving = Reference("moving");
  const Geometry grid = fixed.geometry;
  ASSERT_THAT(WriteDerivedSeries(Path("out"), grid, Ramp(grid), fixed, moving), Succeeds());
  std::set<std::string> instances;
  for (int k = 0; k < 5; ++k) {
    DcmFileFormat file;
    ASSERT_TRUE(file.loadFile(Path(absl::StrCat("out/IM0000", k + 1, ".dcm")).c_str()).good());
    DcmDataset& d = *file.getDataset();
    instances.insert(TextOf(d, DCM_SOPInstanceUID));
    EXPECT_EQ(TextOf(d, DCM_ImageType), "DERIVED");
    EXPECT_EQ(TextOf(d, DCM_ImageType, 1), "SECONDARY");
    EXPECT_EQ(TextOf(d, DCM_FrameOfReferenceUID), kFrameUid);
    EXPECT_EQ(TextOf(d, DCM_PatientID), "P1");
    EXPECT_EQ(TextOf(*ItemOf(d, DCM_DerivationCodeSequence), DCM_CodeValue), "113085");
    EXPECT_EQ(TextOf(*ItemOf(d, DCM_ReferencedImageSequence), DCM_ReferencedSOPInstanceUID),
              absl::StrCat(kSeriesUid, ".", k + 1));
    EXPECT_EQ(TextOf(*ItemOf(d, DCM_SourceImageSequence, 4), DCM_ReferencedSOPInstanceUID),
              absl::StrCat(kMovingSeries, ".5"));
  }
  EXPECT_EQ(instances.size(), 5U);
}

TEST_F(DicomObjectsTest, StoredValuesAreHeldInTheirRange) {
  const DicomReference fixed = Reference("fixed"), moving = Reference("moving");
  std::vector<float> values = Ramp(fixed.geometry);
  // More bits than those of the source, but its steps.
  values[0] = -5000;
  values[1] = 7000;
  ASSERT_THAT(WriteDerivedSeries(Path("out"), fixed.geometry, values, fixed, moving), Succeeds());
  const std::vector<float> back = ToFloat(ReadDicom(Path("out"))->volume);
  EXPECT_EQ(back[0], -5000);
  EXPECT_EQ(back[1], 7000);
  EXPECT_EQ(back[2], std::round(values[2]));
  // Beyond them, steps of its own; and a refusal where these would be coarse.
  values[0] = -60000;
  ASSERT_THAT(WriteDerivedSeries(Path("far"), fixed.geometry, values, fixed, moving), Succeeds());
  const std::vector<float> far = ToFloat(ReadDicom(Path("far"))->volume);
  for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(far[i], values[i], 67001.0 / 65534 / 2 + 1e-2);
  values[1] = 1e9F;
  EXPECT_THAT(WriteDerivedSeries(Path("coarse"), fixed.geometry, values, fixed, moving),
              Fails(absl::StatusCode::kInvalidArgument, "pixels: 16 bits"));
  EXPECT_FALSE(std::filesystem::exists(Path("coarse")));
  // Series whose slices do not share their rescaling: 16 bits over the range.
  DicomReference uneven = Reference("moving");
  uneven.stored.shared = false;
  values[0] = -3000.5F;
  values[1] = 7000;
  ASSERT_THAT(WriteDerivedSeries(Path("wide"), fixed.geometry, values, fixed, uneven), Succeeds());
  const std::vector<float> wide = ToFloat(ReadDicom(Path("wide"))->volume);
  for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(wide[i], values[i], 10001.0 / 65534 / 2 + 1e-3);
}

// Values that are small against the source's steps, as those of a parameter map written beside a CT.
TEST_F(DicomObjectsTest, ValuesBelowAStepOfTheSourceSurvive) {
  const DicomReference fixed = Reference("fixed"), moving = Reference("moving");
  std::vector<float> values;
  for (int64_t i = 0; i < fixed.geometry.voxels(); ++i)
    values.push_back(-0.01F + 0.03F * static_cast<float>(i % 97) / 96);
  ASSERT_THAT(WriteDerivedSeries(Path("out"), fixed.geometry, values, fixed, moving), Succeeds());
  const std::vector<float> back = ToFloat(ReadDicom(Path("out"))->volume);
  for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(back[i], values[i], 0.03 / 65534);
  DcmFileFormat file;
  ASSERT_TRUE(file.loadFile(Path("out/IM00001.dcm").c_str()).good());
  EXPECT_THAT(TextOf(*file.getDataset(), DCM_DerivationDescription), HasSubstr("stored to within 2.3e-07"));
  // A value that no step of the source meets, alone.
  std::fill(values.begin(), values.end(), 0.3F);
  ASSERT_THAT(WriteDerivedSeries(Path("flat"), fixed.geometry, values, fixed, moving), Succeeds());
  EXPECT_NEAR(ToFloat(ReadDicom(Path("flat"))->volume)[3], 0.3, 1e-6);
  // The same where the source has steps so small that its bits do not reach the value.
  DicomReference fine = Reference("moving");
  fine.stored.slope = 1e-3;
  ASSERT_THAT(WriteDerivedSeries(Path("fine"), fixed.geometry, values, fixed, fine), Succeeds());
  EXPECT_NEAR(ToFloat(ReadDicom(Path("fine"))->volume)[3], 0.3, 1e-3);
  // Few values on the source's steps keep them.
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 3);
  ASSERT_THAT(WriteDerivedSeries(Path("labels"), fixed.geometry, values, fixed, moving), Succeeds());
  const DicomVolume labels = *ReadDicom(Path("labels"));
  EXPECT_EQ(labels.volume.rescale_slope, 1);
  EXPECT_EQ(ToFloat(labels.volume), values);
}

TEST_F(DicomObjectsTest, ADerivedSeriesIsShownLikeItsSource) {
  const std::vector<std::pair<DcmTagKey, const char*>> shown = {{DCM_PhotometricInterpretation, "MONOCHROME1"},
                                                                {DCM_PresentationLUTShape, "INVERSE"},
                                                                {DCM_VOILUTFunction, "SIGMOID"},
                                                                {DCM_WindowCenter, "40"},
                                                                {DCM_WindowWidth, "400"},
                                                                {DCM_RescaleType, "HU_MOD"}};
  for (const auto& entry : std::filesystem::directory_iterator(Path("moving"))) {
    DcmFileFormat file;
    ASSERT_TRUE(file.loadFile(entry.path().c_str()).good());
    for (const auto& [tag, value] : shown) file.getDataset()->putAndInsertString(tag, value);
    ASSERT_TRUE(file.saveFile(entry.path().c_str(), EXS_LittleEndianExplicit).good());
  }
  const DicomReference fixed = Reference("fixed"), moving = Reference("moving");
  const std::vector<float> values = Ramp(fixed.geometry);
  ASSERT_THAT(WriteDerivedSeries(Path("out"), fixed.geometry, values, fixed, moving), Succeeds());
  DcmFileFormat file;
  ASSERT_TRUE(file.loadFile(Path("out/IM00001.dcm").c_str()).good());
  for (const auto& [tag, value] : shown) EXPECT_EQ(TextOf(*file.getDataset(), tag), value);
  EXPECT_EQ(ToFloat(ReadDicom(Path("out"))->volume)[7], std::round(values[7]));
}

// The acquisition of the moving files is made anew or left out.
TEST_F(DicomObjectsTest, AHostileAcquisitionLeavesAWellFormedImage) {
  const DicomReference fixed = Reference("fixed");
  DicomReference moving = Reference("moving");
  moving.stored.bits = 8;
  DcmDataset& from = *moving.header;
  from.insert(new DcmLongString(DcmTag(DCM_KVP, EVR_LO)), OFTrue);
  from.putAndInsertString(DCM_KVP, "Zaunkoenig");
  from.putAndInsertString(DCM_BodyPartExamined, "a text that is not a term");
  from.putAndInsertString(DCM_Laterality, "L");
  from.putAndInsertString(DCM_AcquisitionDate, "Walpurga");
  from.putAndInsertString(DCM_AcquisitionTime, "101112.5");
  from.putAndInsertString(DCM_ConvolutionKernel, "Zaunkoenig");
  from.putAndInsertString(DCM_WindowCenter, "40\\50");
  from.putAndInsertString(DCM_WindowWidth, "400");
  from.putAndInsertString(DCM_LossyImageCompression, "01");
  const Geometry grid = fixed.geometry;
  const auto write = [&](const std::string& folder) {
    EXPECT_THAT(WriteDerivedSeries(Path(folder), grid, Ramp(grid), fixed, moving), Succeeds());
    auto file = std::make_unique<DcmFileFormat>();
    EXPECT_TRUE(file->loadFile(Path(folder + "/IM00001.dcm").c_str()).good());
    return file;
  };
  const auto image = write("out");
  DcmDataset& d = *image->getDataset();
  EXPECT_TRUE(d.tagExists(DCM_KVP));
  EXPECT_FALSE(d.tagExistsWithValue(DCM_KVP));
  EXPECT_EQ(TextOf(d, DCM_Laterality), "L");
  EXPECT_EQ(TextOf(d, DCM_AcquisitionTime), "101112.5");
  EXPECT_EQ(TextOf(d, DCM_LossyImageCompression), "01");
  for (const DcmTagKey& tag :
       {DCM_BodyPartExamined, DCM_AcquisitionDate, DCM_ConvolutionKernel, DCM_WindowCenter, DCM_WindowWidth}) {
    EXPECT_FALSE(d.tagExists(tag)) << DcmTag(tag).getTagName();
  }
  Uint16 bits = 0;
  EXPECT_TRUE(d.findAndGetUint16(DCM_BitsStored, bits).good());
  EXPECT_EQ(bits, 12);  // of a CT, at least
  from.putAndInsertString(DCM_WindowWidth, "400\\500");
  from.putAndInsertString(DCM_KVP, "+1.2e2");
  const auto windowed = write("windowed");
  EXPECT_EQ(TextOf(*windowed->getDataset(), DCM_WindowWidth, 1), "500");
  EXPECT_EQ(TextOf(*windowed->getDataset(), DCM_KVP), "120");
}

// The body-weight SUV of a stored pixel, from the attributes of its image alone (Boellaard 2015, eq. 1).
double SuvOf(DcmItem& image, double stored) {
  const auto number = [](DcmItem& item, const DcmTagKey& tag) {
    OFString text;
    EXPECT_TRUE(item.findAndGetOFString(tag, text).good()) << DcmTag(tag).getTagName();
    return std::atof(text.c_str());
  };
  const auto seconds = [&](DcmItem& item, const DcmTagKey& tag) {
    const double time = number(item, tag);  // HHMMSS
    const double whole = std::floor(time);
    return std::floor(whole / 10000) * 3600 + std::fmod(std::floor(whole / 100), 100) * 60 + std::fmod(whole, 100) +
           (time - whole);
  };
  DcmItem* dose = nullptr;
  EXPECT_TRUE(image.findAndGetSequenceItem(DCM_RadiopharmaceuticalInformationSequence, dose).good());
  const double elapsed = seconds(image, DCM_SeriesTime) - seconds(*dose, DCM_RadiopharmaceuticalStartTime);
  const double left =
      number(*dose, DCM_RadionuclideTotalDose) * std::exp2(-elapsed / number(*dose, DCM_RadionuclideHalfLife));
  return stored * number(image, DCM_RescaleSlope) * number(image, DCM_PatientWeight) * 1000 / left;
}

TEST_F(DicomObjectsTest, ADerivedPetKeepsItsUptakeValues) {
  MakeSeries("pet", kMovingSeries, kMovingFrame, kMovingStudy, 5, "PT");
  const DicomReference fixed = Reference("fixed"), pet = Reference("pet");
  EXPECT_FALSE(pet.stored.shared);
  EXPECT_FALSE(pet.is_of_one_time);
  const absl::StatusOr<DicomVolume> source = ReadDicom(Path("pet"));
  ASSERT_THAT(source, Succeeds());
  const std::vector<float> values = ToFloat(source->volume);
  // The identity: plane k of the derived series is slice k of the source.
  ASSERT_THAT(WriteDerivedSeries(Path("out"), pet.geometry, values, fixed, pet), Succeeds());
  const absl::StatusOr<DicomVolume> back = ReadDicom(Path("out"));
  ASSERT_THAT(back, Succeeds());
  EXPECT_EQ(back->provenance.modality, "PT");
  const float most = *std::max_element(values.begin(), values.end());
  const std::vector<float> read = ToFloat(back->volume);
  ASSERT_EQ(read.size(), values.size());
  for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(read[i], values[i], most / 65534 / 2 * 1.001);

  std::set<std::string> indices;
  for (int k = 0; k < 5; ++k) {
    DcmFileFormat derived, original;
    ASSERT_TRUE(derived.loadFile(Path(absl::StrCat("out/IM0000", k + 1, ".dcm")).c_str()).good());
    ASSERT_TRUE(original.loadFile(Path(absl::StrCat("pet/s", (3 * k + 1) % 5)).c_str()).good());
    DcmDataset &d = *derived.getDataset(), &o = *original.getDataset();
    Uint16 to = 0, from = 0;
    ASSERT_TRUE(d.findAndGetUint16(DCM_PixelData, to, 17).good());
    ASSERT_TRUE(o.findAndGetUint16(DCM_PixelData, from, 17).good());
    const double uptake = SuvOf(o, from & 0xfff);
    EXPECT_NEAR(SuvOf(d, to), uptake, 2e-5 * most / values[17] * uptake);
    EXPECT_EQ(TextOf(d, DCM_ImageType), "DERIVED");
    EXPECT_EQ(TextOf(d, DCM_ImageType, 1), "PRIMARY");
    EXPECT_EQ(TextOf(d, DCM_Units), "BQML");
    EXPECT_EQ(TextOf(d, DCM_SeriesType), "WHOLE BODY");
    EXPECT_EQ(TextOf(d, DCM_RescaleIntercept), "0");
    EXPECT_EQ(TextOf(d, DCM_DecayCorrection), "START");
    EXPECT_EQ(TextOf(d, DCM_DecayFactor), "1.0095");
    EXPECT_THAT(TextOf(d, DCM_DerivationDescription), HasSubstr("first source image"));
    EXPECT_FALSE(d.tagExists(DCM_RescaleType));
    DcmItem& dose = *ItemOf(d, DCM_RadiopharmaceuticalInformationSequence);
    EXPECT_EQ(TextOf(dose, DCM_RadiopharmaceuticalStartDateTime), "20200103091500.00+0100");
    EXPECT_EQ(TextOf(*ItemOf(dose, DCM_RadionuclideCodeSequence), DCM_CodeValue), "C-111A1");
    EXPECT_FALSE(dose.tagExists(DCM_Radiopharmaceutical));
    Uint16 index = 0;
    EXPECT_TRUE(d.findAndGetUint16(DCM_ImageIndex, index).good());
    EXPECT_EQ(index, k + 1);
  }
}

TEST_F(DicomObjectsTest, ASlopeThatPetSlicesShareIsKept) {
  MakeSeries("pet", kMovingSeries, kMovingFrame, kMovingStudy, 5, "PT");
  const DicomReference fixed = Reference("fixed");
  DicomReference pet = Reference("pet");
  pet.stored = {true, 0.125, 0, 12, true};
  std::vector<float> values(pet.geometry.voxels(), -2.5F);
  values[0] = 32767 * 0.125F;
  ASSERT_THAT(WriteDerivedSeries(Path("out"), pet.geometry, values, fixed, pet), Succeeds());
  const std::vector<float> back = ToFloat(ReadDicom(Path("out"))->volume);
  EXPECT_EQ(back[1], -2.5F);
  EXPECT_EQ(back[0], 32767 * 0.125F);
  // Values beyond it get a slope of their own, or are refused.
  values[0] = 10000;
  ASSERT_THAT(WriteDerivedSeries(Path("beyond"), pet.geometry, values, fixed, pet), Succeeds());
  EXPECT_NEAR(ToFloat(ReadDicom(Path("beyond"))->volume)[0], 10000, 10000.0 / 32766);
  values[0] = 1e9F;
  EXPECT_THAT(WriteDerivedSeries(Path("hot"), pet.geometry, values, fixed, pet),
              Fails(absl::StatusCode::kInvalidArgument, "pixels: 16 bits"));
  // An intercept has no place in a PET; nor do values below 0 in unsigned pixels.
  pet.stored = {true, 0.125, 7, 16, false};
  values[0] = 1000;
  ASSERT_THAT(WriteDerivedSeries(Path("signed"), pet.geometry, values, fixed, pet), Succeeds());
  const absl::StatusOr<DicomVolume> shifted = ReadDicom(Path("signed"));
  ASSERT_THAT(shifted, Succeeds());
  EXPECT_EQ(shifted->volume.rescale_intercept, 0);
  EXPECT_NEAR(ToFloat(shifted->volume)[1], -2.5, 1000.0 / 32766 / 2 * 1.001);
  // All of one value, and nothing at all.
  for (const float value : {0.0F, 3.5F}) {
    const std::string folder = absl::StrCat("flat", value);
    std::fill(values.begin(), values.end(), value);
    ASSERT_THAT(WriteDerivedSeries(Path(folder), pet.geometry, values, fixed, pet), Succeeds());
    EXPECT_NEAR(ToFloat(ReadDicom(Path(folder))->volume)[2], value, 1e-4);
  }
}

TEST_F(DicomObjectsTest, APetWhoseValuesCannotBeUnderstoodIsRefused) {
  MakeSeries("pet", kMovingSeries, kMovingFrame, kMovingStudy, 5, "PT");
  const DicomReference fixed = Reference("fixed");
  const auto write = [&](const DcmTagKey& tag, const char* value, bool one_time = false) {
    DicomReference pet = Reference("pet");
    pet.is_of_one_time = one_time;
    pet.header->putAndInsertString(tag, value);
    const absl::Status written =
        WriteDerivedSeries(Path("out"), pet.geometry, std::vector<float>(pet.geometry.voxels()), fixed, pet);
    EXPECT_EQ(std::filesystem::exists(Path("out")), written.ok());
    std::filesystem::remove_all(Path("out"));
    return written;
  };
  const absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument, kNot = absl::StatusCode::kUnimplemented;
  EXPECT_THAT(write(DCM_Units, "BQML"), Succeeds());
  EXPECT_THAT(write(DCM_Units, ""), Fails(kInvalid, "Units: "));
  EXPECT_THAT(write(DCM_Units, "ZAUNKOENIG"), Fails(kInvalid, "Units: is missing or no defined term"));
  EXPECT_THAT(write(DCM_DecayCorrection, ""), Fails(kInvalid, "DecayCorrection: "));
  EXPECT_THAT(write(DCM_SeriesTime, "Walpurga"), Fails(kInvalid, "SeriesTime: "));
  EXPECT_THAT(write(DCM_SeriesDate, ""), Fails(kInvalid, "SeriesDate: "));
  EXPECT_THAT(write(DCM_FrameReferenceTime, ""), Fails(kInvalid, "FrameReferenceTime: "));
  EXPECT_THAT(write(DCM_DecayFactor, ""), Fails(kInvalid, "DecayFactor: "));
  EXPECT_THAT(write(DCM_DecayFactor, "1\\2"), Fails(kInvalid, "DecayFactor: "));
  EXPECT_THAT(write(DCM_SeriesType, "STATIC"), Fails(kInvalid, "SeriesType: "));
  EXPECT_THAT(write(DCM_SeriesType, "GATED\\IMAGE"), Fails(kNot, "SeriesType: "));
  EXPECT_THAT(write(DCM_SeriesType, "STATIC\\REPROJECTION"), Fails(kNot, "SeriesType: "));
  EXPECT_THAT(write(DCM_DecayCorrection, "NONE"), Fails(kNot, "DecayCorrection: images of several times"));
  EXPECT_THAT(write(DCM_DecayCorrection, "NONE", /*one_time=*/true), Succeeds());
  DicomReference enhanced = Reference("pet");
  enhanced.instances[0].sop_class = UID_EnhancedPETImageStorage;
  EXPECT_THAT(CheckDerivable(enhanced), Fails(kNot, "enhanced"));
  enhanced.modality = "NM";
  EXPECT_THAT(CheckDerivable(enhanced), Fails(kNot, "modality: "));
}

TEST_F(DicomObjectsTest, AReferenceIsOfOnePatientAndItsUidsAreSome) {
  const auto change = [&](const DcmTagKey& tag, const char* value) {
    DcmFileFormat file;
    ASSERT_TRUE(file.loadFile(Path("moving/s1").c_str()).good());
    file.getDataset()->putAndInsertString(tag, value);
    ASSERT_TRUE(file.saveFile(Path("moving/s1").c_str()).good());
  };
  change(DCM_PatientID, "P2");
  EXPECT_THAT(DicomReference::Read(Path("moving")), Fails(absl::StatusCode::kInvalidArgument, "patient: the files"));
  change(DCM_PatientID, "P1");
  EXPECT_THAT(DicomReference::Read(Path("moving")), Succeeds());
  change(DCM_StudyInstanceUID, "1.2.3");
  EXPECT_THAT(DicomReference::Read(Path("moving")), Fails(absl::StatusCode::kInvalidArgument, "patient: the files"));
  change(DCM_StudyInstanceUID, kMovingStudy);
  for (const char* uid : {"1..2", ".1", "1.", "."}) {
    change(DCM_SOPInstanceUID, uid);
    EXPECT_THAT(DicomReference::Read(Path("moving")), Fails(absl::StatusCode::kInvalidArgument, "SOPInstanceUID: "));
  }
}

TEST_F(DicomObjectsTest, AFolderAppearsWholeOrNotAtAll) {
  const DicomReference fixed = Reference("fixed"), moving = Reference("moving");
  const std::vector<float> values = Ramp(fixed.geometry);
  std::vector<float> nan = values;
  nan.back() = NAN;
  const auto write = [&](const std::string& name, const std::vector<float>& v) {
    return WriteDerivedSeries(Path(name), fixed.geometry, v, fixed, moving);
  };
  EXPECT_THAT(write("out", nan), Fails(absl::StatusCode::kInvalidArgument, "pixels: "));
  EXPECT_FALSE(std::filesystem::exists(Path("out")));
  std::filesystem::create_directory(Path("out"));
  EXPECT_THAT(write("out", values), Succeeds());
  EXPECT_THAT(write("out", values), Fails(absl::StatusCode::kAlreadyExists, "file: "));
  EXPECT_THAT(write("nowhere/out", values), Fails(absl::StatusCode::kNotFound, "file: "));
  EXPECT_THAT(write(Put("plain", "x").substr(folder_.string().size() + 1), values),
              Fails(absl::StatusCode::kAlreadyExists, "file: "));
  DicomReference nuclear = Reference("moving");
  nuclear.modality = "NM";
  EXPECT_THAT(WriteDerivedSeries(Path("nm"), fixed.geometry, values, fixed, nuclear),
              Fails(absl::StatusCode::kUnimplemented, "modality: "));
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr(".intrawarp-")));
  }
}

}  // namespace
}  // namespace intrawarp::io
