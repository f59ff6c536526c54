// SPDX-License-Identifier: Apache-2.0
// Registrations as objects, both ways, as this library reads them back and as DCMTK's own classes see them.
#include "io/dicom/registration_object.h"

#include <dcmtk/config/osconfig.h>
#include <dcmtk/dcmdata/dctk.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "io/dicom/reference.h"
#include "tests/engine/device_test.h"
#include "tests/io/dicom/dicom_maker.h"
#include "tests/io/dicom/objects_fixture.h"

namespace intrawarp::io {
namespace {

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

}  // namespace
}  // namespace intrawarp::io
