// SPDX-License-Identifier: Apache-2.0
// DICOM objects as they are written: items that note the first failure, the modules that all objects share, and a file
// that is replaced at once. Thread-compatible.
#ifndef INTRAWARP_IO_DICOM_OBJECT_H_
#define INTRAWARP_IO_DICOM_OBJECT_H_

#include <dcmtk/config/osconfig.h>
#include <dcmtk/dcmdata/dcfilefo.h>
#include <dcmtk/dcmdata/dcitem.h>
#include <dcmtk/dcmdata/dctagkey.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "io/dicom/reference.h"

namespace intrawarp::io::dicom {

// A decimal string (DS): at most 16 characters, as close to the number as those allow.
std::string DecimalString(double value);
// For three numbers and more, with backslashes between them.
std::string DecimalStrings(absl::Span<const double> values);

struct Code {
  const char* value;
  const char* scheme;
  const char* meaning;
};

// An item of a data set, or the data set. Copies write to the same item, which lives as long as its object.
class ObjectItem {
 public:
  ObjectItem(DcmItem* item, OFCondition* failure) : item_(item), failure_(failure) {}

  void Text(const DcmTagKey& tag, absl::string_view text);
  void Number(const DcmTagKey& tag, double value) { Text(tag, DecimalString(value)); }
  void Numbers(const DcmTagKey& tag, absl::Span<const double> values) { Text(tag, DecimalStrings(values)); }
  void Uint16(const DcmTagKey& tag, uint16_t value);
  void Tag(const DcmTagKey& tag, const DcmTagKey& value);
  void Uint32s(const DcmTagKey& tag, absl::Span<const uint32_t> values);
  void Float64s(const DcmTagKey& tag, absl::Span<const double> values);
  void Float32s(const DcmTagKey& tag, absl::Span<const float> values);
  void Bytes(const DcmTagKey& tag, absl::Span<const uint8_t> bytes);
  void Words(const DcmTagKey& tag, absl::Span<const uint16_t> words);

  // Adds an item to a sequence.
  ObjectItem Add(const DcmTagKey& sequence);
  // An empty sequence.
  void Empty(const DcmTagKey& sequence);
  void AddCode(const DcmTagKey& sequence, const Code& code);
  // `frame`: of a multi-frame instance, from 1; 0: all of it. `purpose`: null: none is told.
  void AddInstance(const DcmTagKey& sequence, const ReferencedInstance& instance, int frame = 0,
                   const Code* purpose = nullptr);

  // The element of another data set, where it has a value. Required ones (type 2) become empty without it.
  void Copy(const DcmTagKey& tag, DcmItem& from);
  void CopyRequired(const DcmTagKey& tag, DcmItem& from);
  // The value of a file that nobody vouches for, made anew where it is well-formed: as many finite numbers of a decimal
  // string; a term of a code string (PS3.5 6.2), the first `count` of them; a date, a time or both; a code of printable
  // ASCII, which every character set has. False, and nothing written, where it is not.
  bool TakeNumbers(const DcmTagKey& tag, DcmItem& from, size_t least = 1, size_t most = 1);
  bool TakeTerms(const DcmTagKey& tag, DcmItem& from, size_t most = 1);
  bool TakeDigits(const DcmTagKey& tag, DcmItem& from);
  bool TakeCode(const DcmTagKey& sequence, DcmItem& from);
  // An attribute without a value (type 2).
  void EmptyValue(const DcmTagKey& tag) { Text(tag, ""); }

 private:
  void Note(const OFCondition& condition);
  void Insert(std::unique_ptr<DcmElement> element);

  DcmItem* item_;
  OFCondition* failure_;
};

// The values that tell one kind of object from another.
struct ObjectKind {
  const char* sop_class;
  const char* modality;
  const char* series_description;
  int series_number;
};

class Object {
 public:
  // With the patient and study of `fixed`, a new series and instance, and this equipment.
  Object(const ObjectKind& kind, const DicomReference& fixed, const DicomStamp& stamp, const std::string& series,
         const std::string& instance, int instance_number);
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;

  ObjectItem root() { return ObjectItem(file_.getDataset(), &failure_); }
  // The frame of reference of `fixed`.
  void AddFrameOfReference(const DicomReference& fixed);
  // Content date, time, label, description and creator (PS3.3 table 10-12); the instance number is there already.
  void AddContentIdentification(const char* label, const char* description, const DicomStamp& stamp);
  // All instances of the series, by study (PS3.3 C.12.2). Two references to one series are joined.
  void AddCommonReferences(std::initializer_list<const DicomReference*> references, const DicomReference& study);

  // Explicit little endian. RESOURCE_EXHAUSTED where memory was short, INTERNAL "object: ..." for any other failure of
  // DCMTK's; otherwise as AtomicFile.
  absl::Status Save(const std::string& path);

 private:
  DcmFileFormat file_;
  OFCondition failure_ = EC_Normal;
};

// The plane of a grid as DICOM has it: orthonormal axes, and the position of voxel (0, 0, k).
struct PlaneAxes {
  std::vector<double> orientation;  // ImageOrientationPatient
  Vec3d normal;                     // the cross product of its axes
  Vec3d third;                      // the grid's own third axis: the normal, or its opposite
};
// INVALID_ARGUMENT "grid: ..." for axes so far from right angles that a voxel would move by more than kMaxSkewMm.
absl::StatusOr<PlaneAxes> AxesOf(const Geometry& grid);
inline constexpr double kMaxSkewMm = 0.005;

std::vector<double> PositionOf(const Geometry& grid, const PlaneAxes& axes, int plane);

// Whether a text is well-formed for the tag's representation: a date (DA), a time (TM) or both (DT).
bool IsDateOrTime(const DcmTagKey& tag, absl::string_view text);

// Date (DA) and time (TM) in the local zone.
std::string DateOf(absl::Time time);
std::string TimeOf(absl::Time time);

}  // namespace intrawarp::io::dicom

#endif  // INTRAWARP_IO_DICOM_OBJECT_H_
