// SPDX-License-Identifier: Apache-2.0
#include "io/dicom/object.h"

#include <dcmtk/dcmdata/dcdatset.h>
#include <dcmtk/dcmdata/dcdeftag.h>
#include <dcmtk/dcmdata/dcmetinf.h>
#include <dcmtk/dcmdata/dcostrma.h>
#include <dcmtk/dcmdata/dcuid.h>
#include <dcmtk/dcmdata/dcvrfd.h>
#include <dcmtk/dcmdata/dcvrul.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "io/dicom/attributes.h"
#include "io/dicom/instance.h"
#include "io/dicom/toolkit.h"
#include "io/file/file.h"

namespace intrawarp::io::dicom {
namespace {

constexpr size_t kMaxDecimalString = 16;
constexpr uint32_t kMaxElementBytes = 0xfffffffe;

// DICOM bytes on their way into a file that is replaced at once.
class FileConsumer : public DcmConsumer {
 public:
  explicit FileConsumer(AtomicFile* file) : file_(file) {}
  const absl::Status& outcome() const { return outcome_; }

  OFBool good() const override { return outcome_.ok(); }
  OFCondition status() const override { return good() ? EC_Normal : EC_InvalidStream; }
  OFBool isFlushed() const override { return OFTrue; }
  offile_off_t avail() const override { return 1 << 20; }
  offile_off_t write(const void* bytes, offile_off_t count) override {
    if (outcome_.ok()) outcome_ = file_->Write(bytes, static_cast<size_t>(count));
    return outcome_.ok() ? count : 0;
  }
  void flush() override {}

 private:
  AtomicFile* file_;
  absl::Status outcome_;
};

class FileStream : public DcmOutputStream {
 public:
  explicit FileStream(FileConsumer* consumer) : DcmOutputStream(consumer) {}
};

absl::Status Outcome(const OFCondition& condition) {
  if (condition.good()) return absl::OkStatus();
  if (condition == EC_MemoryExhausted) return FieldError(absl::StatusCode::kResourceExhausted, "object", "no memory");
  // The text of the condition may quote a value.
  return FieldError(absl::StatusCode::kInternal, "object", "DCMTK could not make it");
}

// The patient and the study (PS3.3 C.7.1.1, C.7.2.1).
void CopyPatientAndStudy(DcmItem& from, ObjectItem root) {
  root.Copy(DCM_SpecificCharacterSet, from);
  for (const DcmTagKey& tag : {DCM_PatientName, DCM_PatientID, DCM_PatientBirthDate, DCM_PatientSex}) {
    root.CopyRequired(tag, from);
  }
  for (const DcmTagKey& tag :
       {DCM_IssuerOfPatientID, DCM_TypeOfPatientID, DCM_IssuerOfPatientIDQualifiersSequence, DCM_PatientIdentityRemoved,
        DCM_DeidentificationMethod, DCM_DeidentificationMethodCodeSequence}) {
    root.Copy(tag, from);
  }
  for (const DcmTagKey& tag :
       {DCM_StudyDate, DCM_StudyTime, DCM_ReferringPhysicianName, DCM_StudyID, DCM_AccessionNumber}) {
    root.CopyRequired(tag, from);
  }
  root.Copy(DCM_StudyDescription, from);
  root.Copy(DCM_IssuerOfAccessionNumberSequence, from);
}

// Enhanced general equipment wants all four (PS3.3 C.7.5.2). Nothing tells one installation from another.
void AddEquipment(ObjectItem root) {
  root.Text(DCM_Manufacturer, "intrawarp");
  root.Text(DCM_ManufacturerModelName, "intrawarp");
  root.Text(DCM_DeviceSerialNumber, "0");
  root.Text(DCM_SoftwareVersions, "intrawarp");
}

}  // namespace

std::string DecimalString(double value) {
  for (int digits = 17; digits > 1; --digits) {
    std::string text = absl::StrFormat("%.*g", digits, value);
    if (text.size() <= kMaxDecimalString) return text;
  }
  return absl::StrFormat("%.0e", value);
}

std::string DecimalStrings(absl::Span<const double> values) {
  return absl::StrJoin(values, "\\", [](std::string* out, double v) { absl::StrAppend(out, DecimalString(v)); });
}

// YYYYMMDD; HH[MM[SS[.F]]] with up to six digits of a fraction; or YYYY[MM[DD[HH[MM[SS[.F]]]]]] and a zone, +HHMM.
bool IsDateOrTime(const DcmTagKey& tag, absl::string_view text) {
  const DcmEVR representation = DcmTag(tag).getEVR();
  const auto are_digits = [](absl::string_view part) {
    return std::all_of(part.begin(), part.end(), [](unsigned char c) { return absl::ascii_isdigit(c); });
  };
  if (text.empty() || !absl::ascii_isdigit(static_cast<unsigned char>(text[0]))) return false;
  if (representation == EVR_DA) return text.size() == 8 && are_digits(text);
  const size_t whole = representation == EVR_DT ? 14 : 6;  // with seconds
  if (const size_t sign = text.find_first_of("+-"); representation == EVR_DT && sign != absl::string_view::npos) {
    const absl::string_view zone = text.substr(sign + 1);
    if (zone.size() != 4 || !are_digits(zone)) return false;
    text = text.substr(0, sign);
  }
  const absl::string_view fraction = text.substr(std::min(text.size(), whole));
  if (!fraction.empty()) {
    return fraction[0] == '.' && fraction.size() >= 2 && fraction.size() <= 7 && are_digits(text.substr(0, whole)) &&
           are_digits(fraction.substr(1));
  }
  const size_t least = representation == EVR_DT ? 4 : 2;
  return text.size() >= least && text.size() % 2 == 0 && are_digits(text);
}

std::string DateOf(absl::Time time) { return absl::FormatTime("%Y%m%d", time, absl::LocalTimeZone()); }
std::string TimeOf(absl::Time time) { return absl::FormatTime("%H%M%S", time, absl::LocalTimeZone()); }

// ---- Items ----------------------------------------------------------------------------------------------------------

void ObjectItem::Note(const OFCondition& condition) {
  if (failure_->good() && condition.bad()) *failure_ = condition;
}

void ObjectItem::Text(const DcmTagKey& tag, absl::string_view text) {
  Note(item_->putAndInsertString(tag, std::string(text).c_str()));
}
void ObjectItem::Uint16(const DcmTagKey& tag, uint16_t value) { Note(item_->putAndInsertUint16(tag, value)); }
void ObjectItem::Tag(const DcmTagKey& tag, const DcmTagKey& value) { Note(item_->putAndInsertTagKey(tag, value)); }
void ObjectItem::Uint32s(const DcmTagKey& tag, absl::Span<const uint32_t> values) {
  auto element = std::make_unique<DcmUnsignedLong>(DcmTag(tag));
  Note(element->putUint32Array(values.data(), static_cast<unsigned long>(values.size())));
  Insert(std::move(element));
}
void ObjectItem::Float64s(const DcmTagKey& tag, absl::Span<const double> values) {
  auto element = std::make_unique<DcmFloatingPointDouble>(DcmTag(tag));
  Note(element->putFloat64Array(values.data(), static_cast<unsigned long>(values.size())));
  Insert(std::move(element));
}
void ObjectItem::Insert(std::unique_ptr<DcmElement> element) {
  const OFCondition inserted = item_->insert(element.get(), /*replaceOld=*/OFTrue);
  Note(inserted);
  if (inserted.good()) (void)element.release();  // the item's own now
}
void ObjectItem::Float32s(const DcmTagKey& tag, absl::Span<const float> values) {
  if (values.size() > kMaxElementBytes / sizeof(float)) return Note(EC_MemoryExhausted);
  Note(item_->putAndInsertFloat32Array(tag, values.data(), values.size()));
}
void ObjectItem::Bytes(const DcmTagKey& tag, absl::Span<const uint8_t> bytes) {
  if (bytes.size() > kMaxElementBytes) return Note(EC_MemoryExhausted);
  Note(item_->putAndInsertUint8Array(tag, bytes.data(), bytes.size()));
}
void ObjectItem::Words(const DcmTagKey& tag, absl::Span<const uint16_t> words) {
  if (words.size() > kMaxElementBytes / sizeof(uint16_t)) return Note(EC_MemoryExhausted);
  Note(item_->putAndInsertUint16Array(tag, words.data(), words.size()));
}

ObjectItem ObjectItem::Add(const DcmTagKey& sequence) {
  DcmItem* item = nullptr;
  Note(item_->findOrCreateSequenceItem(sequence, item, /*itemNum=*/-2));
  // A failure leaves the item itself, to which the object that will not be written can go on adding.
  return ObjectItem(item == nullptr ? item_ : item, failure_);
}

void ObjectItem::Empty(const DcmTagKey& sequence) { Note(item_->insertEmptyElement(sequence)); }

void ObjectItem::AddCode(const DcmTagKey& sequence, const Code& code) {
  ObjectItem item = Add(sequence);
  item.Text(DCM_CodeValue, code.value);
  item.Text(DCM_CodingSchemeDesignator, code.scheme);
  item.Text(DCM_CodeMeaning, code.meaning);
}

void ObjectItem::AddInstance(const DcmTagKey& sequence, const ReferencedInstance& instance, int frame,
                             const Code* purpose) {
  ObjectItem item = Add(sequence);
  item.Text(DCM_ReferencedSOPClassUID, instance.sop_class);
  item.Text(DCM_ReferencedSOPInstanceUID, instance.sop_instance);
  if (frame > 0) item.Text(DCM_ReferencedFrameNumber, absl::StrCat(frame));
  if (purpose != nullptr) item.AddCode(DCM_PurposeOfReferenceCodeSequence, *purpose);
}

bool ObjectItem::TakeNumbers(const DcmTagKey& tag, DcmItem& from, size_t least, size_t most) {
  const absl::StatusOr<std::vector<double>> numbers = io::dicom::Numbers(from, {tag, ""}, "", least, most);
  if (!numbers.ok() || numbers->empty()) return false;
  const bool is_whole = DcmTag(tag).getEVR() == EVR_IS;
  const bool fits = std::all_of(numbers->begin(), numbers->end(), [&](double v) {
    return !is_whole || (v == std::floor(v) && std::abs(v) <= std::numeric_limits<int32_t>::max());
  });
  if (!fits) return false;
  Numbers(tag, *numbers);
  return true;
}

bool ObjectItem::TakeTerms(const DcmTagKey& tag, DcmItem& from, size_t most) {
  std::vector<std::string> terms = Texts(from, {tag, ""});
  terms.resize(std::min(terms.size(), most));
  const bool valid = std::all_of(terms.begin(), terms.end(), [](const std::string& term) {
    return term.size() <= 16 && std::all_of(term.begin(), term.end(), [](unsigned char c) {
             return absl::ascii_isupper(c) || absl::ascii_isdigit(c) || c == ' ' || c == '_';
           });
  });
  if (terms.empty() || !valid) return false;
  Text(tag, absl::StrJoin(terms, "\\"));
  return true;
}

bool ObjectItem::TakeDigits(const DcmTagKey& tag, DcmItem& from) {
  const std::string text = io::dicom::Text(from, {tag, ""});
  if (!IsDateOrTime(tag, text)) return false;
  Text(tag, text);
  return true;
}

bool ObjectItem::TakeCode(const DcmTagKey& sequence, DcmItem& from) {
  DcmItem* const item = FirstItem(&from, sequence);
  if (item == nullptr) return false;
  const std::pair<DcmTagKey, size_t> parts[] = {
      {DCM_CodeValue, 16}, {DCM_CodingSchemeDesignator, 16}, {DCM_CodeMeaning, 64}};
  std::vector<std::string> texts;
  for (const auto& [tag, most] : parts) {
    texts.push_back(io::dicom::Text(*item, {tag, ""}));
    const std::string& text = texts.back();
    const bool plain = std::all_of(text.begin(), text.end(), [](unsigned char c) { return absl::ascii_isprint(c); });
    if (text.empty() || text.size() > most || !plain) return false;
  }
  AddCode(sequence, {texts[0].c_str(), texts[1].c_str(), texts[2].c_str()});
  return true;
}

void ObjectItem::Copy(const DcmTagKey& tag, DcmItem& from) {
  if (from.tagExistsWithValue(tag)) Note(from.findAndInsertCopyOfElement(tag, item_));
}

void ObjectItem::CopyRequired(const DcmTagKey& tag, DcmItem& from) {
  if (from.tagExistsWithValue(tag)) return Copy(tag, from);
  Note(item_->insertEmptyElement(tag));
}

// ---- Objects --------------------------------------------------------------------------------------------------------

Object::Object(const ObjectKind& kind, const DicomReference& fixed, const DicomStamp& stamp, const std::string& series,
               const std::string& instance, int instance_number) {
  const absl::Status started = StartToolkit();
  if (!started.ok()) failure_ = EC_IllegalCall;
  ObjectItem item = root();
  item.Text(DCM_SOPClassUID, kind.sop_class);
  item.Text(DCM_SOPInstanceUID, instance);
  item.Text(DCM_InstanceCreationDate, DateOf(stamp.time));
  item.Text(DCM_InstanceCreationTime, TimeOf(stamp.time));
  CopyPatientAndStudy(*fixed.header, item);
  item.Text(DCM_StudyInstanceUID, fixed.study);
  item.Text(DCM_Modality, kind.modality);
  item.Text(DCM_SeriesInstanceUID, series);
  item.Text(DCM_SeriesNumber, absl::StrCat(kind.series_number));
  item.Text(DCM_SeriesDescription, kind.series_description);
  item.Text(DCM_SeriesDate, DateOf(stamp.time));
  item.Text(DCM_SeriesTime, TimeOf(stamp.time));
  item.Text(DCM_InstanceNumber, absl::StrCat(instance_number));
  AddEquipment(item);
}

void Object::AddFrameOfReference(const DicomReference& fixed) {
  root().Text(DCM_FrameOfReferenceUID, fixed.frame_of_reference);
  root().CopyRequired(DCM_PositionReferenceIndicator, *fixed.header);
}

void Object::AddContentIdentification(const char* label, const char* description, const DicomStamp& stamp) {
  ObjectItem item = root();
  item.Text(DCM_ContentDate, DateOf(stamp.time));
  item.Text(DCM_ContentTime, TimeOf(stamp.time));
  item.Text(DCM_ContentLabel, label);
  item.Text(DCM_ContentDescription, description);
  item.Text(DCM_ContentCreatorName, "");
}

void Object::AddCommonReferences(std::initializer_list<const DicomReference*> references, const DicomReference& study) {
  // By study and series; instances that two references share are named once.
  std::map<std::string, std::map<std::string, std::vector<const ReferencedInstance*>>> studies;
  std::set<std::string> known;
  for (const DicomReference* reference : references) {
    for (const ReferencedInstance& instance : reference->instances) {
      if (!known.insert(instance.sop_instance).second) continue;
      studies[reference->study][reference->series].push_back(&instance);
    }
  }
  for (const auto& [study_uid, all_series] : studies) {
    ObjectItem holder = root();
    if (study_uid != study.study) {
      holder = root().Add(DCM_StudiesContainingOtherReferencedInstancesSequence);
      holder.Text(DCM_StudyInstanceUID, study_uid);
    }
    for (const auto& [series_uid, instances] : all_series) {
      ObjectItem item = holder.Add(DCM_ReferencedSeriesSequence);
      item.Text(DCM_SeriesInstanceUID, series_uid);
      for (const ReferencedInstance* i : instances) item.AddInstance(DCM_ReferencedInstanceSequence, *i);
    }
  }
}

absl::Status Object::Save(const std::string& path) {
  INTRAWARP_RETURN_IF_ERROR(StartToolkit());
  INTRAWARP_RETURN_IF_ERROR(Outcome(failure_));
  INTRAWARP_RETURN_IF_ERROR(Outcome(file_.validateMetaInfo(EXS_LittleEndianExplicit)));
  INTRAWARP_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  FileConsumer consumer(&file);
  FileStream stream(&consumer);
  file_.transferInit();
  const OFCondition written = file_.write(stream, EXS_LittleEndianExplicit, EET_ExplicitLength, nullptr);
  file_.transferEnd();
  INTRAWARP_RETURN_IF_ERROR(consumer.outcome());
  INTRAWARP_RETURN_IF_ERROR(Outcome(written));
  return file.Commit();
}

// ---- Planes ---------------------------------------------------------------------------------------------------------

absl::StatusOr<PlaneAxes> AxesOf(const Geometry& grid) {
  const auto axis = [&](int a) { return Vec3d{grid.direction[0][a], grid.direction[1][a], grid.direction[2][a]}; };
  const Vec3d row = (1 / Norm(axis(0))) * axis(0);
  const Vec3d upright = axis(1) - Dot(axis(1), row) * row;
  const Vec3d column = (1 / Norm(upright)) * upright;
  PlaneAxes axes;
  axes.normal = Cross(row, column);
  axes.third = Dot(axes.normal, axis(2)) > 0 ? axes.normal : -1.0 * axes.normal;
  axes.orientation = {row.x, row.y, row.z, column.x, column.y, column.z};
  const Vec3d made[3] = {row, column, axes.third};
  double moved = 0;
  for (int a = 0; a < 3; ++a) moved += Norm(axis(a) - made[a]) * grid.spacing[a] * (grid.size[a] - 1);
  if (moved <= kMaxSkewMm) return axes;
  return FieldError(
      absl::StatusCode::kInvalidArgument, "grid",
      absl::StrFormat("its axes are not at right angles, as DICOM needs them; a voxel would move by %.2g mm", moved));
}

std::vector<double> PositionOf(const Geometry& grid, const PlaneAxes& axes, int plane) {
  const Vec3d p = grid.origin + (plane * grid.spacing.z) * axes.third;
  return {p.x, p.y, p.z};
}

}  // namespace intrawarp::io::dicom
