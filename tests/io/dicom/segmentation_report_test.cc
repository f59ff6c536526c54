// SPDX-License-Identifier: Apache-2.0
// Segmentations and reports as objects.
#include <dcmtk/config/osconfig.h>
#include <dcmtk/dcmdata/dctk.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "io/dicom/derived_series.h"
#include "io/dicom/dicom.h"
#include "io/dicom/reference.h"
#include "io/dicom/report_object.h"
#include "io/dicom/segmentation_out.h"
#include "io/picture/report_pdf.h"
#include "tests/io/dicom/objects_fixture.h"

namespace intrawarp::io {
namespace {

using ::testing::HasSubstr;

// ---- Segmentations and reports --------------------------------------------------------------------------------------

TEST_F(DicomObjectsTest, AMaskComesBackAsASegmentation) {
  const DicomReference fixed = Reference("fixed");
  Geometry odd = fixed.geometry;
  odd.size = {5, 3, 3};
  for (const Geometry& grid : {fixed.geometry, odd}) {
    std::vector<float> mask(grid.voxels());
    std::mt19937 engine(std::random_device{}());
    for (float& v : mask) v = static_cast<float>(engine() % 2);
    // Empty planes stay.
    std::fill_n(mask.begin(), grid.size.x * grid.size.y, 0.0F);
    ASSERT_THAT(WriteDicomSegmentation(Path("seg.dcm"), grid, mask, fixed, nullptr), Succeeds());
    const absl::StatusOr<DicomVolume> read = ReadDicom(Path("seg.dcm"));
    ASSERT_THAT(read, Succeeds());
    EXPECT_TRUE(SameGrid(read->volume.geometry, grid));
    EXPECT_EQ(ToFloat(read->volume), mask);
    EXPECT_EQ(read->provenance.frame_of_reference, ReadDicom(Path("fixed"))->provenance.frame_of_reference);
    EXPECT_THAT(DicomReference::Read(Path("seg.dcm")), Succeeds());
  }
  std::vector<float> labels(fixed.geometry.voxels());
  labels[3] = 2;
  EXPECT_THAT(WriteDicomSegmentation(Path("x.dcm"), fixed.geometry, labels, fixed, nullptr),
              Fails(absl::StatusCode::kInvalidArgument, "mask: "));
}

TEST_F(DicomObjectsTest, ASegmentKeepsItsDescription) {
  const DicomReference fixed = Reference("fixed");
  const std::vector<float> mask(fixed.geometry.voxels(), 1);
  ASSERT_THAT(WriteDicomSegmentation(Path("seg.dcm"), fixed.geometry, mask, fixed, nullptr), Succeeds());
  DcmFileFormat file;
  ASSERT_TRUE(file.loadFile(Path("seg.dcm").c_str()).good());
  DcmItem& segment = *ItemOf(*file.getDataset(), DCM_SegmentSequence);
  segment.putAndInsertString(DCM_SegmentLabel, "Liver");
  segment.putAndInsertString(DCM_SegmentAlgorithmType, "MANUAL");
  DcmItem& code = *ItemOf(segment, DCM_SegmentedPropertyTypeCodeSequence);
  code.putAndInsertString(DCM_CodeValue, "10200004");
  code.putAndInsertString(DCM_CodeMeaning, "Liver");
  ASSERT_TRUE(file.saveFile(Path("source.dcm").c_str(), EXS_LittleEndianExplicit).good());
  const DicomReference source = Reference("source.dcm");
  EXPECT_EQ(source.segment, 1);
  ASSERT_THAT(WriteDicomSegmentation(Path("warped.dcm"), fixed.geometry, mask, fixed, &source), Succeeds());
  DcmFileFormat warped;
  ASSERT_TRUE(warped.loadFile(Path("warped.dcm").c_str()).good());
  DcmItem& again = *ItemOf(*warped.getDataset(), DCM_SegmentSequence);
  EXPECT_EQ(TextOf(again, DCM_SegmentLabel), "Liver");
  EXPECT_EQ(TextOf(again, DCM_SegmentAlgorithmType), "SEMIAUTOMATIC");
  EXPECT_EQ(TextOf(*ItemOf(again, DCM_SegmentedPropertyTypeCodeSequence), DCM_CodeValue), "10200004");
}

TEST_F(DicomObjectsTest, ASegmentOfOddTextsGetsPlainOnes) {
  const DicomReference fixed = Reference("fixed");
  const std::vector<float> mask(fixed.geometry.voxels(), 1);
  ASSERT_THAT(WriteDicomSegmentation(Path("seg.dcm"), fixed.geometry, mask, fixed, nullptr), Succeeds());
  DcmFileFormat file;
  ASSERT_TRUE(file.loadFile(Path("seg.dcm").c_str()).good());
  DcmItem& segment = *ItemOf(*file.getDataset(), DCM_SegmentSequence);
  segment.putAndInsertString(DCM_SegmentLabel, std::string(65, 'L').c_str());
  DcmItem& type = *ItemOf(segment, DCM_SegmentedPropertyTypeCodeSequence);
  type.putAndInsertString(DCM_CodeMeaning, "L\xe9zion");  // in a character set that the fixed series lacks
  DcmItem& category = *ItemOf(segment, DCM_SegmentedPropertyCategoryCodeSequence);
  category.putAndInsertString(DCM_CodeValue, "49755003");
  category.putAndInsertString(DCM_CodeMeaning, "Morphologically Altered Structure");
  category.putAndInsertString(DCM_PatientName, "Zaunkoenig");
  segment.insert(new DcmLongString(DcmTag(DCM_RecommendedDisplayCIELabValue, EVR_LO)), OFTrue);
  segment.putAndInsertString(DCM_RecommendedDisplayCIELabValue, "red");
  ASSERT_TRUE(file.saveFile(Path("source.dcm").c_str(), EXS_LittleEndianExplicit).good());
  const DicomReference source = Reference("source.dcm");
  ASSERT_THAT(WriteDicomSegmentation(Path("warped.dcm"), fixed.geometry, mask, fixed, &source), Succeeds());
  DcmFileFormat warped;
  ASSERT_TRUE(warped.loadFile(Path("warped.dcm").c_str()).good());
  DcmItem& again = *ItemOf(*warped.getDataset(), DCM_SegmentSequence);
  EXPECT_EQ(TextOf(again, DCM_SegmentLabel), "Segment");
  EXPECT_EQ(TextOf(*ItemOf(again, DCM_SegmentedPropertyTypeCodeSequence), DCM_CodeMeaning), "Tissue");
  DcmItem& kept = *ItemOf(again, DCM_SegmentedPropertyCategoryCodeSequence);
  EXPECT_EQ(TextOf(kept, DCM_CodeValue), "49755003");
  EXPECT_FALSE(kept.tagExists(DCM_PatientName));
  EXPECT_FALSE(again.tagExists(DCM_RecommendedDisplayCIELabValue));
}

// A segmentation is a multi-frame image: each plane names its frame.
TEST_F(DicomObjectsTest, APlaneOfAMultiFrameImageIsNamedByItsFrame) {
  const DicomReference fixed = Reference("fixed");
  const std::vector<float> mask(fixed.geometry.voxels(), 1);
  ASSERT_THAT(WriteDicomSegmentation(Path("seg.dcm"), fixed.geometry, mask, fixed, nullptr), Succeeds());
  const DicomReference frames = Reference("seg.dcm");
  ASSERT_THAT(WriteDicomSegmentation(Path("again.dcm"), fixed.geometry, mask, frames, nullptr), Succeeds());
  ASSERT_THAT(WriteDerivedSeries(Path("out"), fixed.geometry, mask, frames, Reference("moving")), Succeeds());
  DcmFileFormat again, single;
  ASSERT_TRUE(again.loadFile(Path("again.dcm").c_str()).good());
  ASSERT_TRUE(single.loadFile(Path("seg.dcm").c_str()).good());
  for (int k = 0; k < fixed.geometry.size.z; ++k) {
    const auto source = [&](DcmFileFormat& file) -> DcmItem& {
      DcmItem& frame = *ItemOf(*file.getDataset(), DCM_PerFrameFunctionalGroupsSequence, k);
      return *ItemOf(*ItemOf(frame, DCM_DerivationImageSequence), DCM_SourceImageSequence);
    };
    EXPECT_EQ(TextOf(source(again), DCM_ReferencedFrameNumber), absl::StrCat(k + 1));
    EXPECT_FALSE(source(single).tagExists(DCM_ReferencedFrameNumber));
    DcmFileFormat image;
    ASSERT_TRUE(image.loadFile(Path(absl::StrCat("out/IM0000", k + 1, ".dcm")).c_str()).good());
    EXPECT_EQ(TextOf(*ItemOf(*image.getDataset(), DCM_ReferencedImageSequence), DCM_ReferencedFrameNumber),
              absl::StrCat(k + 1));
  }
}

TEST_F(DicomObjectsTest, AReportIsAPdfWithItsSources) {
  const absl::StatusOr<std::string> pdf = RenderReportPdf(SomeReport());
  ASSERT_THAT(pdf, Succeeds());
  EXPECT_THAT(*pdf, HasSubstr("/Count 4"));  // pages: three of rows, one of the picture
  ASSERT_THAT(WriteDicomReport(Path("report.dcm"), *pdf, "Title", Reference("fixed"), Reference("moving")), Succeeds());
  DcmFileFormat file;
  ASSERT_TRUE(file.loadFile(Path("report.dcm").c_str()).good());
  DcmDataset& d = *file.getDataset();
  EXPECT_EQ(TextOf(d, DCM_SOPClassUID), UID_EncapsulatedPDFStorage);
  const Uint8* bytes = nullptr;
  unsigned long count = 0;
  ASSERT_TRUE(d.findAndGetUint8Array(DCM_EncapsulatedDocument, bytes, &count).good());
  Uint32 length = 0;
  ASSERT_TRUE(d.findAndGetUint32(DCM_EncapsulatedDocumentLength, length).good());
  ASSERT_LE(length, count);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes), length), *pdf);
  EXPECT_EQ(TextOf(*ItemOf(d, DCM_SourceInstanceSequence, 9), DCM_ReferencedSOPInstanceUID),
            absl::StrCat(kMovingSeries, ".5"));
  EXPECT_THAT(WriteDicomReport(Path("no.dcm"), "text", "Title", Reference("fixed"), Reference("moving")),
              Fails(absl::StatusCode::kInvalidArgument, "pdf: "));
}

}  // namespace
}  // namespace intrawarp::io
