// SPDX-License-Identifier: Apache-2.0
// Objects that are written, from a series that the test makes.
#ifndef INTRAWARP_TESTS_IO_DICOM_OBJECTS_FIXTURE_H_
#define INTRAWARP_TESTS_IO_DICOM_OBJECTS_FIXTURE_H_

#include <dcmtk/config/osconfig.h>
#include <dcmtk/dcmdata/dctk.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "io/dicom/reference.h"
#include "io/dicom/registration_object.h"
#include "io/picture/report_pdf.h"
#include "tests/engine/device_test.h"
#include "tests/io/dicom/dicom_maker.h"
#include "tests/io/io_test.h"

namespace intrawarp::io {

inline constexpr double kAimMm = 0.01;
inline constexpr char kMovingSeries[] = "1.2.826.0.1.3680043.2.1125.2.21";
inline constexpr char kMovingFrame[] = "1.2.826.0.1.3680043.2.1125.2.22";
inline constexpr char kFixedStudy[] = "1.2.826.0.1.3680043.2.1125.1.10";
inline constexpr char kMovingStudy[] = "1.2.826.0.1.3680043.2.1125.2.20";

// u is 0 outside of the grid: of a spline, where its four neighbours are not all there.
Vec3d Displacement(const ItkTransform& t, Vec3d p);

inline Vec3d Mapped(const ItkTransform& t, Vec3d p) {
  return t.affine(t.kind == ItkTransform::Kind::kAffine ? p : p + Displacement(t, p));
}

inline double Distance(Vec3d a, Vec3d b) { return std::sqrt(Dot(a - b, a - b)); }

// Within the grid by a hair, so that rounding does not decide which side of its border a point is on; and around it.
std::vector<Vec3d> PointsAbout(const ItkTransform& t, bool outside);

Geometry Anisotropic(Int3 size);

inline std::vector<Geometry> Grids(Int3 size) {
  return {ObliqueGeometry(size), Anisotropic(size), ObliqueGeometry(size, /*left_handed=*/true)};
}

AffineMap SomeAffine();

// About a diagonal, and with a shift.
AffineMap SomeRigid();

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

ItkTransform AffineOf(const AffineMap& map);

ItkTransform GridOf(ItkTransform::Kind kind, const Geometry& grid, const AffineMap& affine, float amplitude);

// ---- Derived series -------------------------------------------------------------------------------------------------
std::vector<float> Ramp(const Geometry& grid);

ReportDocument SomeReport();

}  // namespace intrawarp::io

#endif  // INTRAWARP_TESTS_IO_DICOM_OBJECTS_FIXTURE_H_
