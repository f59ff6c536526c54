// SPDX-License-Identifier: Apache-2.0
// Objects that are written: registrations both ways, derived series, segmentations and reports, as this library reads
// them back, as DCMTK's own classes see them, and as dciodvfy and pydicom judge them where they are installed.
#include <arpa/inet.h>
#include <dcmtk/config/osconfig.h>
#include <dcmtk/dcmdata/dctk.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <random>
#include <set>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "io/dicom/derived_series.h"
#include "io/dicom/dicom.h"
#include "io/dicom/reference.h"
#include "io/dicom/registration_object.h"
#include "io/dicom/report_object.h"
#include "io/dicom/segmentation_out.h"
#include "io/file.h"
#include "io/report_pdf.h"
#include "tests/client/process.h"
#include "tests/engine/device_test.h"
#include "tests/io/dicom/dicom_maker.h"
#include "tests/io/io_test.h"

namespace intrawarp::io {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kPoints = 10000;
constexpr double kAimMm = 0.01;
constexpr char kMovingSeries[] = "1.2.826.0.1.3680043.2.1125.2.21";
constexpr char kMovingFrame[] = "1.2.826.0.1.3680043.2.1125.2.22";
constexpr char kFixedStudy[] = "1.2.826.0.1.3680043.2.1125.1.10";
constexpr char kMovingStudy[] = "1.2.826.0.1.3680043.2.1125.2.20";

// ---- Maps after their definition ------------------------------------------------------------------------------------

std::array<double, 4> SplineWeights(double t) {
  return {(1 - t) * (1 - t) * (1 - t) / 6, (3 * t * t * t - 6 * t * t + 4) / 6,
          (-3 * t * t * t + 3 * t * t + 3 * t + 1) / 6, t * t * t / 6};
}
std::array<double, 4> LinearWeights(double t) { return {0, 1 - t, t, 0}; }

// u is 0 outside of the grid: of a spline, where its four neighbours are not all there.
Vec3d Displacement(const ItkTransform& t, Vec3d p) {
  const bool spline = t.kind == ItkTransform::Kind::kControlGrid;
  const Vec3d index = PhysicalToIndex(t.grid)(p);
  int first[3];
  std::array<double, 4> weights[3];
  for (int a = 0; a < 3; ++a) {
    const int n = t.grid.size[a];
    weights[a] = {0, 1, 0, 0};
    first[a] = -1;
    if (n == 1) continue;
    const double low = spline ? 1 : 0, high = spline ? n - 2 : n - 1;
    if (index[a] < low || index[a] > high) return {};
    const double base = std::min(std::floor(index[a]), high - 1);
    first[a] = static_cast<int>(base) - 1;
    weights[a] = spline ? SplineWeights(index[a] - base) : LinearWeights(index[a] - base);
  }
  Vec3d u;
  for (int k = 0; k < 64; ++k) {
    const int step[3] = {k & 3, k >> 2 & 3, k >> 4};
    double weight = 1;
    int64_t at[3];
    for (int a = 0; a < 3; ++a) {
      weight *= weights[a][step[a]];
      at[a] = std::clamp(first[a] + step[a], 0, t.grid.size[a] - 1);
    }
    const int64_t i = (at[2] * t.grid.size.y + at[1]) * t.grid.size.x + at[0];
    for (int c = 0; c < 3; ++c) u[c] += weight * t.vectors[3 * i + c];
  }
  return u;
}

Vec3d Mapped(const ItkTransform& t, Vec3d p) {
  return t.affine(t.kind == ItkTransform::Kind::kAffine ? p : p + Displacement(t, p));
}

double Distance(Vec3d a, Vec3d b) { return std::sqrt(Dot(a - b, a - b)); }

// Within the grid by a hair, so that rounding does not decide which side of its border a point is on; and around it.
std::vector<Vec3d> PointsAbout(const ItkTransform& t, bool outside) {
  std::mt19937 engine(std::random_device{}());
  const AffineMap to_physical = IndexToPhysical(t.grid);
  const double margin = t.kind == ItkTransform::Kind::kControlGrid ? 1.0001 : 0.0001;
  std::vector<Vec3d> points(kPoints);
  for (Vec3d& p : points) {
    Vec3d index;
    for (int a = 0; a < 3; ++a) {
      const double last = t.grid.size[a] - 1;
      if (t.grid.size[a] == 1) continue;
      index[a] = std::uniform_real_distribution<>(margin, last - margin)(engine);
      if (outside && a == 0) index[a] += index[a] > last / 2 ? last : -last;
    }
    p = to_physical(index);
  }
  return points;
}

Geometry Anisotropic(Int3 size) {
  Geometry g;
  g.size = size;
  g.spacing = {0.6, 0.6, 3};
  g.origin = {-120.5, 33.25, -1432};
  return g;
}

std::vector<Geometry> Grids(Int3 size) {
  return {ObliqueGeometry(size), Anisotropic(size), ObliqueGeometry(size, /*left_handed=*/true)};
}

AffineMap SomeAffine() {
  AffineMap a;
  const double m[3][4] = {{0.98, -0.11, 0.05, 12.345678901234}, {0.09, 1.03, -0.2, -87.6}, {-0.04, 0.21, 0.95, 143.2}};
  for (int r = 0; r < 3; ++r) std::copy(m[r], m[r] + 4, a.m[r]);
  return a;
}

// About a diagonal, and with a shift.
AffineMap SomeRigid() {
  AffineMap a;
  const double c = std::cos(0.3), s = std::sin(0.3);
  const double m[3][4] = {{c, -s, 0, -250.123456789}, {s, c, 0, 3.5}, {0, 0, 1, 1432.000001}};
  for (int r = 0; r < 3; ++r) std::copy(m[r], m[r] + 4, a.m[r]);
  return a;
}

// ---- Series ---------------------------------------------------------------------------------------------------------

class DicomObjectsTest : public FileTest {
 protected:
  DicomObjectsTest() {
    MakeSeries("fixed", kSeriesUid, kFrameUid, kFixedStudy, 0, "CT");
    MakeSeries("moving", kMovingSeries, kMovingFrame, kMovingStudy, 5, "CT");
  }

  // Five slices of a patient, with all that the modules of an image want.
  void MakeSeries(const std::string& name, const std::string& series, const std::string& frame,
                  const std::string& study, double z, const std::string& modality, const std::string& patient = "P1") {
    std::filesystem::create_directories(folder_ / name);
    DicomMaker maker(Path(name));
    for (int k = 0; k < 5; ++k) {
      SliceSpec spec = {.z = z + 2 * k, .series = series, .modality = modality};
      spec.pixel = [k](int x, int y) { return static_cast<uint16_t>(1000 + 7 * x + 31 * y + 100 * k); };
      const auto slice = maker.Slice(spec);
      DcmDataset& d = *slice->getDataset();
      d.putAndInsertString(DCM_SOPInstanceUID, absl::StrCat(series, ".", k + 1).c_str());
      d.putAndInsertString(DCM_StudyInstanceUID, study.c_str());
      d.putAndInsertString(DCM_FrameOfReferenceUID, frame.c_str());
      d.putAndInsertString(DCM_PatientName, "Doe^Jane");
      d.putAndInsertString(DCM_PatientID, patient.c_str());
      d.putAndInsertString(DCM_PatientBirthDate, "19500101");
      d.putAndInsertString(DCM_PatientSex, "F");
      d.putAndInsertString(DCM_StudyDate, "20200102");
      d.putAndInsertString(DCM_PatientPosition, "HFS");
      d.putAndInsertString(DCM_KVP, "120");
      if (modality == "PT") MakePet(d, k);
      if (modality == "MR") {
        d.putAndInsertString(DCM_ScanningSequence, "GR");
        d.putAndInsertString(DCM_SequenceVariant, "SP");
        d.putAndInsertString(DCM_RepetitionTime, "250");
        d.putAndInsertString(DCM_EchoTime, "2.5");
      }
      maker.Save(*slice, absl::StrCat("s", (3 * k + 1) % 5));
    }
  }

  // A static PET with a slope of its own for each slice, as scanners write it.
  static void MakePet(DcmDataset& d, int k) {
    d.putAndInsertString(DCM_SOPClassUID, UID_PositronEmissionTomographyImageStorage);
    d.putAndInsertString(DCM_Units, "BQML");
    d.putAndInsertString(DCM_CountsSource, "EMISSION");
    d.putAndInsertString(DCM_SeriesType, "WHOLE BODY\\IMAGE");
    d.putAndInsertString(DCM_CorrectedImage, "DECY\\ATTN\\SCAT");
    d.putAndInsertString(DCM_DecayCorrection, "START");
    d.putAndInsertString(DCM_SUVType, "BW");
    d.putAndInsertString(DCM_SeriesDate, "20200103");
    d.putAndInsertString(DCM_SeriesTime, "101500.25");
    d.putAndInsertString(DCM_AcquisitionDate, "20200103");
    d.putAndInsertString(DCM_AcquisitionTime, k < 3 ? "101500" : "101800");
    d.putAndInsertString(DCM_FrameReferenceTime, k < 3 ? "90000" : "270000");
    d.putAndInsertString(DCM_ActualFrameDuration, "180000");
    d.putAndInsertString(DCM_DecayFactor, k < 3 ? "1.0095" : "1.0287");
    d.putAndInsertString(DCM_PatientWeight, "71.5");
    d.putAndInsertString(DCM_RescaleSlope, absl::StrCat(0.5 + 0.25 * k).c_str());
    d.putAndInsertString(DCM_RescaleIntercept, "0");
    DcmItem* dose = nullptr;
    ASSERT_TRUE(d.findOrCreateSequenceItem(DCM_RadiopharmaceuticalInformationSequence, dose).good());
    dose->putAndInsertString(DCM_Radiopharmaceutical, "Zaunkoenig");
    dose->putAndInsertString(DCM_RadionuclideTotalDose, "370000000");
    dose->putAndInsertString(DCM_RadionuclideHalfLife, "6586.2");
    dose->putAndInsertString(DCM_RadiopharmaceuticalStartTime, "091500.00");
    dose->putAndInsertString(DCM_RadiopharmaceuticalStartDateTime, "20200103091500.00+0100");
    DcmItem* code = nullptr;
    ASSERT_TRUE(dose->findOrCreateSequenceItem(DCM_RadionuclideCodeSequence, code).good());
    code->putAndInsertString(DCM_CodeValue, "C-111A1");
    code->putAndInsertString(DCM_CodingSchemeDesignator, "SRT");
    code->putAndInsertString(DCM_CodeMeaning, "^18^Fluorine");
  }

  DicomReference Reference(const std::string& name) const {
    absl::StatusOr<DicomReference> reference = DicomReference::Read(Path(name));
    EXPECT_TRUE(reference.ok()) << reference.status();
    return reference.ok() ? *std::move(reference) : DicomReference();
  }

  // Writes and reads.
  absl::StatusOr<ItkTransform> RoundTrip(const ItkTransform& t, const DicomRegistrationOptions& options = {}) {
    const absl::Status written =
        WriteDicomRegistration(Path("reg.dcm"), t, Reference("fixed"), Reference("moving"), options);
    if (!written.ok()) return written;
    return ReadDicomRegistration(Path("reg.dcm"));
  }

  // The largest difference of T before and after.
  double LargestDifference(const ItkTransform& t, const std::vector<Vec3d>& points,
                           const DicomRegistrationOptions& options = {}) {
    const absl::StatusOr<ItkTransform> read = RoundTrip(t, options);
    EXPECT_TRUE(read.ok()) << read.status();
    if (!read.ok()) return HUGE_VAL;
    double most = 0;
    for (const Vec3d& p : points) most = std::max(most, Distance(Mapped(t, p), Mapped(*read, p)));
    return most;
  }

  static std::string TextOf(DcmItem& item, const DcmTagKey& tag, unsigned long at = 0) {
    OFString value;
    EXPECT_TRUE(item.findAndGetOFString(tag, value, at).good()) << DcmTag(tag).getTagName();
    return std::string(value.c_str());
  }
  static DcmItem* ItemOf(DcmItem& item, const DcmTagKey& tag, long at = 0) {
    DcmItem* inner = nullptr;
    EXPECT_TRUE(item.findAndGetSequenceItem(tag, inner, at).good()) << DcmTag(tag).getTagName();
    return inner;
  }

  // Files as other programs write them: an object of ours, changed.
  template <typename Change>
  absl::StatusOr<ItkTransform> ReadChanged(const ItkTransform& t, const Change& change) {
    EXPECT_THAT(WriteDicomRegistration(Path("reg.dcm"), t, Reference("fixed"), Reference("moving")), Succeeds());
    DcmFileFormat file;
    EXPECT_TRUE(file.loadFile(Path("reg.dcm").c_str()).good());
    change(*file.getDataset());
    EXPECT_TRUE(file.saveFile(Path("changed.dcm").c_str(), EXS_LittleEndianImplicit).good());
    return ReadDicomRegistration(Path("changed.dcm"));
  }
};

ItkTransform AffineOf(const AffineMap& map) {
  ItkTransform t;
  t.affine = map;
  return t;
}

ItkTransform GridOf(ItkTransform::Kind kind, const Geometry& grid, const AffineMap& affine, float amplitude) {
  ItkTransform t;
  t.kind = kind;
  t.affine = affine;
  t.grid = grid;
  t.vectors = RandomFloats(3 * grid.voxels(), std::random_device{}(), -amplitude, amplitude);
  return t;
}

// ---- Registrations --------------------------------------------------------------------------------------------------

TEST_F(DicomObjectsTest, AffineMapsComeBack) {
  ItkTransform box;
  box.grid = Anisotropic({300, 300, 100});
  for (const AffineMap& map : {AffineMap::Identity(), SomeRigid(), SomeAffine()}) {
    const double most = LargestDifference(AffineOf(map), PointsAbout(box, false));
    std::printf("affine: %.2g mm\n", most);
    EXPECT_LT(most, 1e-8);
  }
}

TEST_F(DicomObjectsTest, DisplacementsComeBack) {
  for (const Int3 size : {Int3{17, 13, 9}, Int3{2, 2, 2}, Int3{31, 5, 1}}) {
    for (const Geometry& grid : Grids(size)) {
      const ItkTransform t = GridOf(ItkTransform::Kind::kDisplacement, grid, SomeAffine(), 20);
      const double most = LargestDifference(t, PointsAbout(t, false));
      std::printf("displacement %s: %.2g mm\n", SizeString(grid).c_str(), most);
      EXPECT_LT(most, 1e-4) << SizeString(grid);
      EXPECT_LT(LargestDifference(t, PointsAbout(t, true)), 1e-4) << SizeString(grid);
    }
  }
}

TEST_F(DicomObjectsTest, ControlGridsComeBackWithinTheTolerance) {
  for (const Int3 size : {Int3{9, 7, 6}, Int3{4, 4, 4}, Int3{8, 6, 1}}) {
    for (const Geometry& grid : Grids(size)) {
      const ItkTransform t = GridOf(ItkTransform::Kind::kControlGrid, grid, SomeRigid(), 1);
      const double most = LargestDifference(t, PointsAbout(t, false));
      std::printf("control grid %s: %.2g mm\n", SizeString(grid).c_str(), most);
      EXPECT_LE(most, kAimMm) << SizeString(grid);
      // The bound is not far from what happens, so that a looser tolerance shows.
      EXPECT_GT(LargestDifference(t, PointsAbout(t, false), {.tolerance_mm = 0.5}), most) << SizeString(grid);
      EXPECT_LE(LargestDifference(t, PointsAbout(t, false), {.tolerance_mm = 0.5}), 0.5) << SizeString(grid);
      EXPECT_LT(LargestDifference(t, PointsAbout(t, true)), 1e-4) << SizeString(grid);
    }
  }
}

// Without a tolerance the grid is as fine as it may be, and says how fine that is.
TEST_F(DicomObjectsTest, AGridThatWouldBeTooLargeIsCoarser) {
  const ItkTransform t = GridOf(ItkTransform::Kind::kControlGrid, Anisotropic({9, 9, 9}), SomeRigid(), 1);
  const double most = LargestDifference(t, PointsAbout(t, false), {.max_grid_bytes = 1 << 18});
  EXPECT_GT(most, kAimMm);
  DcmFileFormat file;
  ASSERT_TRUE(file.loadFile(Path("reg.dcm").c_str()).good());
  const std::string comment = TextOf(*ItemOf(*file.getDataset(), DCM_DeformableRegistrationSequence),
                                     DCM_FrameOfReferenceTransformationComment);
  double told = 0;
  ASSERT_EQ(std::sscanf(comment.c_str(), "Linear interpolation is within %lf mm", &told), 1) << comment;
  EXPECT_LE(most, 1.05 * told);  // two digits are told
  EXPECT_LE(std::filesystem::file_size(Path("reg.dcm")), (1U << 18) + 10000);
}

// Directions as PS3.3 states them, on numbers that DCMTK reads.
TEST_F(DicomObjectsTest, ASpatialRegistrationTakesMovingPointsToFixedOnes) {
  const ItkTransform t = AffineOf(SomeRigid());
  ASSERT_THAT(WriteDicomRegistration(Path("reg.dcm"), t, Reference("fixed"), Reference("moving")), Succeeds());
  DcmFileFormat file;
  ASSERT_TRUE(file.loadFile(Path("reg.dcm").c_str()).good());
  DcmDataset& d = *file.getDataset();
  EXPECT_EQ(TextOf(d, DCM_SOPClassUID), UID_SpatialRegistrationStorage);
  EXPECT_EQ(TextOf(d, DCM_FrameOfReferenceUID), kFrameUid);
  EXPECT_EQ(TextOf(d, DCM_PatientName), "Doe^Jane");
  EXPECT_EQ(TextOf(d, DCM_StudyInstanceUID), kFixedStudy);
  DcmItem& fixed = *ItemOf(d, DCM_RegistrationSequence, 0);
  DcmItem& moving = *ItemOf(d, DCM_RegistrationSequence, 1);
  EXPECT_EQ(TextOf(fixed, DCM_FrameOfReferenceUID), kFrameUid);
  EXPECT_EQ(TextOf(moving, DCM_FrameOfReferenceUID), kMovingFrame);
  EXPECT_EQ(TextOf(*ItemOf(moving, DCM_ReferencedImageSequence, 4), DCM_ReferencedSOPInstanceUID),
            absl::StrCat(kMovingSeries, ".5"));
  DcmItem& matrix = *ItemOf(*ItemOf(moving, DCM_MatrixRegistrationSequence), DCM_MatrixSequence);
  EXPECT_EQ(TextOf(matrix, DCM_FrameOfReferenceTransformationMatrixType), "RIGID");
  AffineMap m;
  for (unsigned long i = 0; i < 12; ++i) {
    const std::string text = TextOf(matrix, DCM_FrameOfReferenceTransformationMatrix, i);
    EXPECT_LE(text.size(), 16U);
    m.m[i / 4][i % 4] = std::stod(text);
  }
  const Vec3d p = {12, -34, 56};
  EXPECT_LT(Distance(m(t.affine(p)), p), 1e-9);
  // The other study is named as one.
  DcmItem& other = *ItemOf(d, DCM_StudiesContainingOtherReferencedInstancesSequence);
  EXPECT_EQ(TextOf(other, DCM_StudyInstanceUID), kMovingStudy);
  EXPECT_EQ(TextOf(*ItemOf(d, DCM_ReferencedSeriesSequence), DCM_SeriesInstanceUID), kSeriesUid);
}

TEST_F(DicomObjectsTest, ADeformableRegistrationTakesFixedPointsToMovingOnes) {
  const Geometry grid = ObliqueGeometry({5, 4, 3}, /*left_handed=*/true);
  const ItkTransform t = GridOf(ItkTransform::Kind::kDisplacement, grid, SomeAffine(), 5);
  ASSERT_THAT(WriteDicomRegistration(Path("reg.dcm"), t, Reference("fixed"), Reference("moving")), Succeeds());
  DcmFileFormat file;
  ASSERT_TRUE(file.loadFile(Path("reg.dcm").c_str()).good());
  DcmDataset& d = *file.getDataset();
  EXPECT_EQ(TextOf(d, DCM_FrameOfReferenceUID), kFrameUid);
  DcmItem& item = *ItemOf(d, DCM_DeformableRegistrationSequence);
  EXPECT_EQ(TextOf(item, DCM_SourceFrameOfReferenceUID), kMovingFrame);
  DcmItem& g = *ItemOf(item, DCM_DeformableRegistrationGridSequence);
  const Float32* vectors = nullptr;
  unsigned long count = 0;
  ASSERT_TRUE(g.findAndGetFloat32Array(DCM_VectorGridData, vectors, &count).good());
  ASSERT_EQ(count, 180U);
  const auto number = [&](const DcmTagKey& tag, unsigned long i) { return std::stod(TextOf(g, tag, i)); };
  const auto vec = [&](const DcmTagKey& tag, unsigned long i) {
    return Vec3d{number(tag, i), number(tag, i + 1), number(tag, i + 2)};
  };
  const Vec3d row = vec(DCM_ImageOrientationPatient, 0), column = vec(DCM_ImageOrientationPatient, 3);
  const Vec3d depth = {row.y * column.z - row.z * column.y, row.z * column.x - row.x * column.z,
                       row.x * column.y - row.y * column.x};
  // PS3.3 C.20.3.1.1, node by node: source = Post(node + vector).
  for (int k = 0; k < 3; ++k) {
    for (int j = 0; j < 4; ++j) {
      for (int i = 0; i < 5; ++i) {
        const Vec3d node = vec(DCM_ImagePositionPatient, 0) + (i * number(DCM_GridResolution, 0)) * row +
                           (j * number(DCM_GridResolution, 1)) * column + (k * number(DCM_GridResolution, 2)) * depth;
        const Float32* v = vectors + 3 * ((k * 4 + j) * 5 + i);
        const Vec3d source = t.affine(node + Vec3d{v[0], v[1], v[2]});
        // Inwards by a hair: rounding may put a border node outside.
        const Vec3d inside = node + 1e-9 * (Center(grid) - node);
        EXPECT_LT(Distance(source, Mapped(t, inside)), 1e-5);
      }
    }
  }
}

TEST_F(DicomObjectsTest, OneFrameOfReferenceOnBothSidesIsToldApart) {
  MakeSeries("moving", kMovingSeries, kFrameUid, kFixedStudy, 5, "CT");
  ItkTransform box;
  box.grid = Anisotropic({50, 50, 50});
  EXPECT_LT(LargestDifference(AffineOf(SomeAffine()), PointsAbout(box, false)), 1e-8);
  const ItkTransform t = GridOf(ItkTransform::Kind::kDisplacement, Anisotropic({5, 5, 5}), SomeAffine(), 5);
  EXPECT_LT(LargestDifference(t, PointsAbout(t, false)), 1e-4);
  // Both images in one study are named in one place.
  DcmFileFormat file;
  ASSERT_TRUE(file.loadFile(Path("reg.dcm").c_str()).good());
  EXPECT_FALSE(file.getDataset()->tagExists(DCM_StudiesContainingOtherReferencedInstancesSequence));
  EXPECT_NE(ItemOf(*file.getDataset(), DCM_ReferencedSeriesSequence, 1), nullptr);
}

void SetSizes(DcmItem& grid, const std::array<Uint32, 3>& sizes) {
  auto* element = new DcmUnsignedLong(DcmTag(DCM_GridDimensions));
  EXPECT_TRUE(element->putUint32Array(sizes.data(), 3).good());
  EXPECT_TRUE(grid.insert(element, /*replaceOld=*/OFTrue).good());
}

TEST_F(DicomObjectsTest, WhatOthersWriteIsComposedOrRefusedByName) {
  const ItkTransform affine = AffineOf(SomeAffine());
  const ItkTransform grid = GridOf(ItkTransform::Kind::kDisplacement, Anisotropic({5, 4, 3}), SomeAffine(), 5);
  const auto matrix_of = [&](DcmItem& d, long at) -> DcmItem& {
    return *ItemOf(*ItemOf(*ItemOf(d, DCM_RegistrationSequence, at), DCM_MatrixRegistrationSequence),
                   DCM_MatrixSequence);
  };
  const char* kShift = "1\\0\\0\\5\\0\\1\\0\\-6\\0\\0\\1\\7\\0\\0\\0\\1";
  const Vec3d p = {3, 4, 5}, shift = {5, -6, 7};

  // The fixed images move, too: T = (moving -> registered)^-1 after (fixed -> registered).
  const auto both = ReadChanged(affine, [&](DcmItem& d) {
    matrix_of(d, 0).putAndInsertString(DCM_FrameOfReferenceTransformationMatrix, kShift);
  });
  ASSERT_THAT(both, Succeeds());
  EXPECT_LT(Distance((*both).affine(p), affine.affine(p + shift)), 1e-8);
  // The moving item alone.
  const auto alone = ReadChanged(affine, [&](DcmItem& d) { d.findAndDeleteSequenceItem(DCM_RegistrationSequence, 0); });
  ASSERT_THAT(alone, Succeeds());
  EXPECT_LT(Distance(alone->affine(p), affine.affine(p)), 1e-8);
  // A matrix before the grid turns the vectors: Post(Pre x + d(x)).
  const auto pre = ReadChanged(grid, [&](DcmItem& d) {
    ItemOf(*ItemOf(d, DCM_DeformableRegistrationSequence), DCM_PreDeformationMatrixRegistrationSequence)
        ->putAndInsertString(DCM_FrameOfReferenceTransformationMatrix,
                             "0\\-1\\0\\5\\1\\0\\0\\-6\\0\\0\\2\\7\\0\\0\\0\\1");
  });
  ASSERT_THAT(pre, Succeeds());
  const Vec3d q = Center(grid.grid) + Vec3d{0.1, 0.2, 0.3};
  const Vec3d turned = Vec3d{-q.y + 5, q.x - 6, 2 * q.z + 7};
  EXPECT_LT(Distance(Mapped(*pre, q), grid.affine(turned + Displacement(grid, q))), 1e-4);

  const auto refused = [&](const ItkTransform& t, absl::StatusCode code, const char* text, const auto& change) {
    EXPECT_THAT(ReadChanged(t, change), Fails(code, text));
  };
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  const auto kUnimplemented = absl::StatusCode::kUnimplemented;
  refused(affine, kUnimplemented, "RegistrationSequence: nothing tells", [&](DcmItem& d) {
    d.putAndInsertString(DCM_FrameOfReferenceUID, "1.2.3");
    matrix_of(d, 0).putAndInsertString(DCM_FrameOfReferenceTransformationMatrix, kShift);
  });
  refused(affine, kUnimplemented, "MatrixSequence: products", [&](DcmItem& d) {
    DcmItem* more = nullptr;
    ItemOf(*ItemOf(d, DCM_RegistrationSequence), DCM_MatrixRegistrationSequence)
        ->findOrCreateSequenceItem(DCM_MatrixSequence, more, -2);
  });
  refused(affine, kUnimplemented, "RegistrationSequence: more than two", [&](DcmItem& d) {
    DcmItem* more = nullptr;
    d.findOrCreateSequenceItem(DCM_RegistrationSequence, more, -2);
  });
  refused(affine, kInvalid,
          "SOPClassUID: ", [](DcmItem& d) { d.putAndInsertString(DCM_SOPClassUID, UID_CTImageStorage); });
  refused(affine, kInvalid, "FrameOfReferenceUID: is missing",
          [](DcmItem& d) { d.findAndDeleteElement(DCM_FrameOfReferenceUID); });
  refused(affine, kInvalid, "RegistrationSequence: is missing",
          [](DcmItem& d) { d.findAndDeleteElement(DCM_RegistrationSequence); });
  for (const char* matrix :
       {"1\\0\\0\\0\\0\\1\\0\\0\\0\\0\\0\\0\\0\\0\\0\\1", "1\\2\\3", "1\\0\\0\\0\\0\\1\\0\\0\\0\\0\\1\\0\\0\\0\\1\\1",
        "1\\0\\0\\x\\0\\1\\0\\0\\0\\0\\1\\0\\0\\0\\0\\1"}) {
    refused(affine, kInvalid, "FrameOfReferenceTransformationMatrix",
            [&](DcmItem& d) { matrix_of(d, 1).putAndInsertString(DCM_FrameOfReferenceTransformationMatrix, matrix); });
  }
  const auto grid_of = [&](DcmItem& d) -> DcmItem& {
    return *ItemOf(*ItemOf(d, DCM_DeformableRegistrationSequence), DCM_DeformableRegistrationGridSequence);
  };
  refused(grid, kInvalid, "VectorGridData: must have", [&](DcmItem& d) { SetSizes(grid_of(d), {5, 4, 16384}); });
  refused(grid, kInvalid, "GridDimensions: ", [&](DcmItem& d) { SetSizes(grid_of(d), {4000000000U, 4, 3}); });
  refused(grid, kInvalid, "GridResolution: ", [&](DcmItem& d) {
    const std::array<Float64, 3> spacing = {1, 0, 1};
    grid_of(d).putAndInsertFloat64Array(DCM_GridResolution, spacing.data(), 3);
  });
  refused(grid, kInvalid, "orientation: ", [&](DcmItem& d) {
    grid_of(d).putAndInsertString(DCM_ImageOrientationPatient, "1\\0\\0\\1\\0\\0");
  });
  refused(grid, kInvalid, "VectorGridData: is undefined (NaN)", [&](DcmItem& d) {
    std::vector<Float32> vectors(180);
    vectors[7] = NAN;
    grid_of(d).putAndInsertFloat32Array(DCM_VectorGridData, vectors.data(), vectors.size());
  });
  refused(grid, kUnimplemented, "DeformableRegistrationSequence: several", [&](DcmItem& d) {
    auto* copy = new DcmItem(*ItemOf(d, DCM_DeformableRegistrationSequence));
    d.insertSequenceItem(DCM_DeformableRegistrationSequence, copy);
  });
  EXPECT_THAT(ReadDicomRegistration(Put("text", "no DICOM")), Fails(absl::StatusCode::kNotFound, "is not DICOM"));
}

TEST_F(DicomObjectsTest, DamagedObjectsAreRefusedOrReadAndNeverCrash) {
  const ItkTransform t = GridOf(ItkTransform::Kind::kDisplacement, Anisotropic({3, 2, 2}), SomeAffine(), 5);
  ASSERT_THAT(RoundTrip(t), Succeeds());
  const std::string bytes = Get(Path("reg.dcm"));
  for (size_t length = 132; length < bytes.size(); length += 41) {
    EXPECT_FALSE(ReadDicomRegistration(Put("cut", bytes.substr(0, length))).ok()) << length;
  }
  std::mt19937 engine(std::random_device{}());
  for (int i = 0; i < 400; ++i) {
    std::string flipped = bytes;
    for (int n = 0; n < 3; ++n) flipped[132 + engine() % (bytes.size() - 132)] ^= static_cast<char>(1 << engine() % 8);
    (void)ReadDicomRegistration(Put("flipped", flipped));
  }
}

TEST_F(DicomObjectsTest, WhatCannotBeWrittenIsRefusedBeforeAFileAppears) {
  const auto write = [&](const ItkTransform& t, const DicomRegistrationOptions& options = {}) {
    return WriteDicomRegistration(Path("no.dcm"), t, Reference("fixed"), Reference("moving"), options);
  };
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  AffineMap singular = SomeAffine();
  for (int c = 0; c < 3; ++c) singular.m[2][c] = singular.m[1][c];
  EXPECT_THAT(write(AffineOf(singular)), Fails(kInvalid, "matrix: "));
  ItkTransform nan = GridOf(ItkTransform::Kind::kDisplacement, Anisotropic({3, 2, 2}), SomeAffine(), 5);
  nan.vectors[4] = NAN;
  EXPECT_THAT(write(nan), Fails(kInvalid, "displacement: "));
  Geometry skewed = Anisotropic({300, 300, 10});
  skewed.direction[1][0] = 5e-4;
  EXPECT_THAT(write(GridOf(ItkTransform::Kind::kDisplacement, skewed, SomeAffine(), 5)), Fails(kInvalid, "grid: "));
  const ItkTransform spline = GridOf(ItkTransform::Kind::kControlGrid, Anisotropic({40, 40, 40}), SomeAffine(), 20);
  EXPECT_THAT(write(spline, {.tolerance_mm = 0.01}), Fails(absl::StatusCode::kResourceExhausted, "tolerance_mm: "));
  EXPECT_THAT(write(spline, {.max_grid_bytes = 1 << 20}),
              Fails(absl::StatusCode::kResourceExhausted, "tolerance_mm: "));
  EXPECT_THAT(write(spline, {.tolerance_mm = 0}), Fails(kInvalid, "tolerance_mm: "));
  MakeSeries("moving", kMovingSeries, kMovingFrame, kMovingStudy, 5, "CT", "P2");
  EXPECT_THAT(write(AffineOf(SomeAffine())), Fails(kInvalid, "patient: "));
  EXPECT_FALSE(std::filesystem::exists(Path("no.dcm")));
  MakeSeries("moving", kMovingSeries, "", kMovingStudy, 5, "CT");
  EXPECT_THAT(DicomReference::Read(Path("moving")), Fails(kInvalid, "FrameOfReferenceUID: "));
}

TEST_F(DicomObjectsTest, NumbersBeyondAllBoundsAreRefused) {
  ItkTransform far;
  far.affine.m[0][0] = far.affine.m[1][1] = far.affine.m[2][2] = 1e-100;
  far.affine.m[0][3] = 1e300;  // its inverse is infinite
  ItkTransform wild = GridOf(ItkTransform::Kind::kControlGrid, Anisotropic({6, 5, 4}), SomeRigid(), 1);
  wild.vectors[9] = 3e38F;
  wild.vectors[12] = -3e38F;
  const ItkTransform fine = GridOf(ItkTransform::Kind::kControlGrid, Anisotropic({6, 5, 4}), SomeRigid(), 1);
  const DicomReference fixed = Reference("fixed"), moving = Reference("moving");
  const auto write = [&](const ItkTransform& t, const DicomRegistrationOptions& options) {
    return WriteDicomRegistration(Path("x.dcm"), t, fixed, moving, options);
  };
  EXPECT_THAT(write(far, {}), Fails(absl::StatusCode::kInvalidArgument, "matrix: "));
  EXPECT_THAT(write(wild, {}), Fails(absl::StatusCode::kResourceExhausted, "tolerance_mm: "));
  EXPECT_THAT(write(wild, {.tolerance_mm = 1e-300}), Fails(absl::StatusCode::kResourceExhausted, "tolerance_mm: "));
  EXPECT_THAT(write(fine, {.tolerance_mm = HUGE_VAL, .max_grid_bytes = 1}),
              Fails(absl::StatusCode::kInvalidArgument, "tolerance_mm: "));
  EXPECT_FALSE(std::filesystem::exists(Path("x.dcm")));
}

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

// ---- Derived series -------------------------------------------------------------------------------------------------

std::vector<float> Ramp(const Geometry& grid) {
  std::vector<float> values;
  for (int64_t i = 0; i < grid.voxels(); ++i) values.push_back(static_cast<float>(i % 900) - 450.25F);
  return values;
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

ReportDocument SomeReport() {
  ReportDocument document;
  document.title = "Registration quality report";
  document.verdict = "Verdict: ok";
  document.is_good = true;
  document.remarks = {
      "- a reason that is so long that it has to be broken between its words, once and then once more, "
      "until nothing of it is left over"};
  document.sections = {{"Options", {}}};
  for (int i = 0; i < 120; ++i) document.sections[0].rows.emplace_back(absl::StrCat("row ", i), "caf\xe9 \n value");
  document.picture = Picture{7, 5, std::vector<uint8_t>(105, 128)};
  return document;
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

int FreePort() {
  const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(descriptor, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(descriptor);
  return ntohs(address.sin_port);
}

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
    for (int i = 0; i < 300; ++i) {
      if (Output(Url("/system")).find("ApiVersion") != std::string::npos) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return false;
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
