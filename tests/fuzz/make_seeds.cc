// SPDX-License-Identifier: Apache-2.0
// Makes the first inputs of fuzz targets whose inputs are laborious to write by hand: make_fuzz_seeds FOLDER writes
// FOLDER/NAME/... for each such target. They are generated alone; nothing is copied from real data.
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "io/file/digest.h"
#include "server/dimse/command.h"
#include "server/dimse/pdu.h"
#include "tests/fuzz/calls_input.h"
#include "tests/fuzz/navigate_input.h"
#include "tests/fuzz/parts.h"
#include "tests/io/dicom/dicom_maker.h"
#include "tests/server/simulation/frames.h"

namespace intrawarp::fuzz {
namespace {

namespace fs = std::filesystem;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

class Seeds {
 public:
  Seeds(fs::path folder, const char* target) : folder_(std::move(folder) / target) { fs::create_directories(folder_); }
  void Add(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
  }

 private:
  const fs::path folder_;
};

// ---- DICOM ----------------------------------------------------------------------------------------------------------

// The options of dicom_fuzz.
constexpr char kPlain = 0, kResample = 1, kFileAlone = 4, kRegistration = 8, kReference = 16;

class DicomSeeds {
 public:
  explicit DicomSeeds(const fs::path& folder)
      : seeds_(folder, "dicom"), work_(folder / "work"), maker_(work_.string()) {
    fs::create_directories(work_);
  }
  ~DicomSeeds() { fs::remove_all(work_); }

  void Make() {
    AddSyntaxes();
    AddSeries();
    AddFrames();
    AddMosaic();
    AddDirectory();
    AddRegistrations();
  }

 private:
  std::unique_ptr<DcmFileFormat> Slice(io::SliceSpec spec) {
    spec.columns = 6;
    if (spec.rows == 10) spec.rows = 4;
    auto file = maker_.Slice(spec);
    DcmDataset& d = *file->getDataset();
    d.putAndInsertString(DCM_PatientName, "PLANTED^NAME");
    d.putAndInsertString(DCM_PatientID, "PLANTED-ID");
    d.putAndInsertString(DCM_StudyInstanceUID, "1.2.3.4");
    return file;
  }
  // With sequences of undefined length, which stay well-formed when what they hold grows.
  std::string Bytes(DcmFileFormat& file, E_TransferSyntax syntax = EXS_LittleEndianExplicit) {
    const std::string path = maker_.Save(file, "one", syntax);
    if (syntax == EXS_LittleEndianExplicit) {
      file.saveFile(path.c_str(), syntax, EET_UndefinedLength, EGL_recalcGL);
    }
    const std::string bytes = ReadFile(path);
    fs::remove(path);
    return bytes;
  }
  void Add(const std::string& name, int options, const std::vector<std::string>& files) {
    seeds_.Add(name, static_cast<char>(options) + JoinParts(files));
  }

  void AddSyntaxes() {
    const std::pair<const char*, E_TransferSyntax> syntaxes[] = {{"implicit", EXS_LittleEndianImplicit},
                                                                 {"explicit", EXS_LittleEndianExplicit},
                                                                 {"big", EXS_BigEndianExplicit},
                                                                 {"deflated", EXS_DeflatedLittleEndianExplicit},
                                                                 {"jpeg", EXS_JPEGProcess14SV1},
                                                                 {"jpegls", EXS_JPEGLSLossless},
                                                                 {"rle", EXS_RLELossless}};
    for (const auto& [name, syntax] : syntaxes) Add(name, kReference, {Bytes(*Slice({}), syntax)});
    const auto slice = Slice({});
    const std::vector<uint16_t> cells(24, 7);
    const std::string path =
        maker_.SaveEncapsulated(*slice, "one", EXS_JPEG2000LosslessOnly, {io::EncodeJpeg2000(cells, 6, 4, 12, false)});
    Add("jpeg2000", kPlain, {ReadFile(path)});
    fs::remove(path);
  }

  void AddSeries() {
    std::vector<std::string> files, tilted;
    for (int k = 0; k < 3; ++k) {
      files.push_back(Bytes(*Slice({.z = 2.0 * k})));
      tilted.push_back(Bytes(*Slice({.y = 30 + 0.5 * k, .z = k == 2 ? 6 : 2.0 * k, .modality = "MR"})));
    }
    Add("series", kReference, files);
    Add("tilted", kResample, tilted);
    files.push_back(files[1]);
    Add("duplicate", kPlain, files);
    auto padded = Slice({.is_signed = true});
    padded->getDataset()->putAndInsertSint16(DCM_PixelPaddingValue, -7);
    padded->getDataset()->putAndInsertString(DCM_TemporalPositionIdentifier, "2");
    Add("padded", kPlain, {Bytes(*padded), files[0]});
  }

  std::unique_ptr<DcmFileFormat> Enhanced(int frames) {
    auto file = Slice({.rows = 4 * frames, .modality = "MR"});
    DcmDataset& d = *file->getDataset();
    d.putAndInsertUint16(DCM_Rows, 4);
    d.putAndInsertString(DCM_NumberOfFrames, absl::StrCat(frames).c_str());
    for (const DcmTagKey& tag : {DCM_ImagePositionPatient, DCM_ImageOrientationPatient, DCM_PixelSpacing}) {
      d.findAndDeleteElement(tag);
    }
    DcmItem* shared = nullptr;
    DcmItem* item = nullptr;
    d.findOrCreateSequenceItem(DCM_SharedFunctionalGroupsSequence, shared, 0);
    shared->findOrCreateSequenceItem(DCM_PixelMeasuresSequence, item, 0);
    item->putAndInsertString(DCM_PixelSpacing, "0.75\\0.5");
    shared->findOrCreateSequenceItem(DCM_PlaneOrientationSequence, item, 0);
    item->putAndInsertString(DCM_ImageOrientationPatient, "1\\0\\0\\0\\1\\0");
    for (int f = 0; f < frames; ++f) {
      DcmItem* frame = nullptr;
      d.findOrCreateSequenceItem(DCM_PerFrameFunctionalGroupsSequence, frame, -2);
      frame->findOrCreateSequenceItem(DCM_PlanePositionSequence, item, 0);
      item->putAndInsertString(DCM_ImagePositionPatient, absl::StrCat("-20\\30\\", 2 * f).c_str());
      frame->findOrCreateSequenceItem(DCM_PixelValueTransformationSequence, item, 0);
      item->putAndInsertString(DCM_RescaleSlope, "2");
      item->putAndInsertString(DCM_RescaleIntercept, "1");
      frame->findOrCreateSequenceItem(DCM_FrameContentSequence, item, 0);
      item->putAndInsertUint32(DCM_TemporalPositionIndex, 1);
    }
    return file;
  }

  std::unique_ptr<DcmFileFormat> Segmentation() {
    auto file = Enhanced(3);
    DcmDataset& d = *file->getDataset();
    d.putAndInsertString(DCM_SOPClassUID, UID_SegmentationStorage);
    d.putAndInsertString(DCM_Modality, "SEG");
    d.putAndInsertString(DCM_SegmentationType, "BINARY");
    for (const DcmTagKey& tag : {DCM_BitsAllocated, DCM_BitsStored}) d.putAndInsertUint16(tag, 1);
    d.putAndInsertUint16(DCM_HighBit, 0);
    const std::vector<Uint8> bits(10, 0x55);
    d.findAndDeleteElement(DCM_PixelData);
    d.putAndInsertUint8Array(DCM_PixelData, bits.data(), bits.size());
    for (long f = 0; f < 3; ++f) {
      DcmItem* frame = nullptr;
      DcmItem* item = nullptr;
      d.findAndGetSequenceItem(DCM_PerFrameFunctionalGroupsSequence, frame, f);
      frame->findOrCreateSequenceItem(DCM_SegmentIdentificationSequence, item, 0);
      item->putAndInsertUint16(DCM_ReferencedSegmentNumber, static_cast<Uint16>(1 + f / 2));
    }
    return file;
  }

  void AddFrames() {
    Add("enhanced", kReference, {Bytes(*Enhanced(3))});
    Add("enhanced_rle", kPlain, {Bytes(*Enhanced(2), EXS_RLELossless)});
    Add("segmentation", kReference, {Bytes(*Segmentation())});
    auto dose = Slice({.rows = 12, .modality = "RTDOSE"});
    DcmDataset& d = *dose->getDataset();
    d.putAndInsertUint16(DCM_Rows, 4);
    d.putAndInsertString(DCM_NumberOfFrames, "3");
    d.putAndInsertString(DCM_GridFrameOffsetVector, "0\\2\\4");
    d.putAndInsertString(DCM_DoseGridScaling, "0.5");
    Add("dose", kPlain, {Bytes(*dose)});
    auto floats = Slice({.modality = "MR"});
    floats->getDataset()->findAndDeleteElement(DCM_PixelData);
    floats->getDataset()->putAndInsertUint16(DCM_BitsAllocated, 32);
    const std::vector<Float32> values(24, 1.5F);
    floats->getDataset()->putAndInsertFloat32Array(DCM_FloatPixelData, values.data(), values.size());
    Add("float", kPlain, {Bytes(*floats)});
  }

  static std::string CsaWord(uint32_t v) { return std::string(reinterpret_cast<const char*>(&v), 4); }
  static std::string CsaTag(const std::string& name, const std::vector<std::string>& items) {
    std::string tag = name;
    tag.resize(64);
    tag +=
        CsaWord(1) + std::string("IS\0\0", 4) + CsaWord(6) + CsaWord(static_cast<uint32_t>(items.size())) + CsaWord(77);
    for (const std::string& item : items) {
      const auto length = static_cast<uint32_t>(item.size());
      tag += CsaWord(length) + CsaWord(length) + CsaWord(77) + CsaWord(length) + item;
      tag.resize(tag.size() + (4 - length % 4) % 4);
    }
    return tag;
  }

  void AddMosaic() {
    const auto slice = Slice({.rows = 6, .spacing = "2\\2", .modality = "MR"});
    DcmDataset& d = *slice->getDataset();
    d.putAndInsertString(DCM_ImageType, "ORIGINAL\\PRIMARY\\M\\ND\\MOSAIC");
    d.putAndInsertString(DCM_SpacingBetweenSlices, "3.5");
    const std::string csa = std::string("SV10\4\3\2\1", 8) + CsaWord(2) + CsaWord(77) +
                            CsaTag("NumberOfImagesInMosaic", {"3"}) + CsaTag("SliceNormalVector", {"0", "0", "-1"});
    d.putAndInsertString(DcmTag(0x0029, 0x0010, EVR_LO), "SIEMENS CSA HEADER");
    d.putAndInsertUint8Array(DcmTag(0x0029, 0x1010, EVR_OB), reinterpret_cast<const Uint8*>(csa.data()), csa.size());
    Add("mosaic", kPlain, {Bytes(*slice)});
  }

  void AddDirectory() {
    DcmFileFormat directory;
    DcmDataset& d = *directory.getDataset();
    d.putAndInsertString(DCM_SOPClassUID, UID_MediaStorageDirectoryStorage);
    d.putAndInsertString(DCM_SOPInstanceUID, "1.2.3");
    DcmItem* record = nullptr;
    d.findOrCreateSequenceItem(DCM_DirectoryRecordSequence, record, -2);
    record->putAndInsertString(DCM_DirectoryRecordType, "IMAGE");
    record->putAndInsertString(DCM_ReferencedFileID, "IM1");
    Add("directory", kFileAlone, {Bytes(directory), Bytes(*Slice({}))});
  }

  static void AddMatrix(DcmItem& item, const DcmTagKey& sequence, const char* matrix) {
    DcmItem* registration = nullptr;
    item.findOrCreateSequenceItem(sequence, registration, 0);
    registration->putAndInsertString(DCM_FrameOfReferenceTransformationMatrix, matrix);
    registration->putAndInsertString(DCM_FrameOfReferenceTransformationMatrixType, "AFFINE");
  }

  void AddRegistrations() {
    constexpr char kIdentity[] = "1\\0\\0\\0\\0\\1\\0\\0\\0\\0\\1\\0\\0\\0\\0\\1";
    constexpr char kShift[] = "1\\0\\0\\5\\0\\1\\0\\6\\0\\0\\1\\7\\0\\0\\0\\1";
    DcmFileFormat spatial;
    DcmDataset& d = *spatial.getDataset();
    d.putAndInsertString(DCM_SOPClassUID, UID_SpatialRegistrationStorage);
    d.putAndInsertString(DCM_SOPInstanceUID, "1.2.5");
    d.putAndInsertString(DCM_FrameOfReferenceUID, "1.2.6");
    for (const auto& [frame, matrix] : {std::pair{"1.2.6", kIdentity}, std::pair{"1.2.7", kShift}}) {
      DcmItem* item = nullptr;
      DcmItem* matrices = nullptr;
      d.findOrCreateSequenceItem(DCM_RegistrationSequence, item, -2);
      item->putAndInsertString(DCM_FrameOfReferenceUID, frame);
      item->findOrCreateSequenceItem(DCM_MatrixRegistrationSequence, matrices, 0);
      AddMatrix(*matrices, DCM_MatrixSequence, matrix);
    }
    Add("spatial", kRegistration, {Bytes(spatial)});

    DcmFileFormat deformable;
    DcmDataset& e = *deformable.getDataset();
    e.putAndInsertString(DCM_SOPClassUID, UID_DeformableSpatialRegistrationStorage);
    e.putAndInsertString(DCM_SOPInstanceUID, "1.2.8");
    e.putAndInsertString(DCM_FrameOfReferenceUID, "1.2.6");
    DcmItem* item = nullptr;
    e.findOrCreateSequenceItem(DCM_DeformableRegistrationSequence, item, 0);
    item->putAndInsertString(DCM_SourceFrameOfReferenceUID, "1.2.7");
    AddMatrix(*item, DCM_PreDeformationMatrixRegistrationSequence, kIdentity);
    AddMatrix(*item, DCM_PostDeformationMatrixRegistrationSequence, kShift);
    DcmItem* grid = nullptr;
    item->findOrCreateSequenceItem(DCM_DeformableRegistrationGridSequence, grid, 0);
    grid->putAndInsertString(DCM_ImagePositionPatient, "0\\0\\0");
    grid->putAndInsertString(DCM_ImageOrientationPatient, "1\\0\\0\\0\\1\\0");
    const Uint32 size[3] = {2, 2, 2};
    grid->putAndInsertUint8Array(DCM_GridDimensions, reinterpret_cast<const Uint8*>(size), sizeof(size));
    auto* dimensions = new DcmUnsignedLong(DCM_GridDimensions);
    dimensions->putUint32Array(size, 3);
    grid->insert(dimensions, OFTrue);
    const Float64 resolution[3] = {2, 2, 2};
    auto* steps = new DcmFloatingPointDouble(DCM_GridResolution);
    steps->putFloat64Array(resolution, 3);
    grid->insert(steps, OFTrue);
    const std::vector<Float32> vectors(24, 0.5F);
    auto* data = new DcmOtherFloat(DCM_VectorGridData);
    data->putFloat32Array(vectors.data(), vectors.size());
    grid->insert(data, OFTrue);
    Add("deformable", kRegistration, {Bytes(deformable)});
  }

  const Seeds seeds_;
  const fs::path work_;
  io::DicomMaker maker_;
};

// ---- DIMSE ----------------------------------------------------------------------------------------------------------

dimse::AssociateRequest SomeRequest() {
  return {"INTRAWARP",
          "SENDER",
          {{1, "1.2.840.10008.1.1", {"1.2.840.10008.1.2"}},
           {3, "1.2.840.10008.5.1.4.1.1.2", {"1.2.840.10008.1.2.1", "1.2.840.10008.1.2"}},
           {5, "1.2.840.10008.5.1.4.1.1.20", {"1.2.840.10008.1.2"}}},
          {{"1.2.840.10008.5.1.4.1.1.2", true, false}},
          16384};
}

std::string CommandOf(uint16_t field, bool has_data) {
  dimse::Command command;
  command.field = field;
  command.message_id = 7;
  command.has_data = has_data;
  command.elements.SetUid(dimse::kAffectedSopClass, "1.2.840.10008.5.1.4.1.1.2");
  command.elements.SetUid(dimse::kAffectedSopInstance, "1.2.3.4.5");
  return dimse::EncodeCommand(command);
}

std::string Unit(uint8_t context, bool is_command, bool is_last, const std::string& payload) {
  return dimse::EncodeFragmentHeader(context, is_command, is_last, payload.size()) + payload;
}

void MakeDimse(const fs::path& folder) {
  const Seeds seeds(folder, "dimse");
  const std::string request = dimse::EncodeAssociateRequest(SomeRequest());
  const std::string accept = dimse::EncodeAssociateAccept({{{1, dimse::ContextResult::kAccepted, "1.2.840.10008.1.2"},
                                                            {3, dimse::ContextResult::kAccepted, "1.2.840.10008.1.2"}},
                                                           {{"1.2.840.10008.5.1.4.1.1.2", false, true}},
                                                           16384},
                                                          "CALLED", "CALLING");
  const auto body = [](const std::string& unit) { return unit.substr(dimse::kPduHeaderBytes); };
  const auto door = [](int number, const std::string& bytes) { return static_cast<char>(number) + bytes; };
  const std::string echo = Unit(1, true, true, CommandOf(dimse::kEchoRequest, false));
  const std::string store = CommandOf(dimse::kStoreRequest, true);
  const std::string whole_store = Unit(3, true, true, store) + Unit(3, false, true, std::string(40, 'd'));
  const std::string pieces = Unit(3, true, false, store.substr(0, 20)) + Unit(3, true, true, store.substr(20)) +
                             Unit(3, false, false, std::string(30, 'd')) + Unit(3, false, true, "");
  const std::string release = dimse::EncodeRelease(dimse::PduType::kReleaseRequest);
  seeds.Add("request", door(0, body(request)));
  seeds.Add("accept", door(1, body(accept)));
  seeds.Add("reject", door(1, body(dimse::EncodeAssociateReject(dimse::kLocalLimit))));
  seeds.Add("fragments", door(2, body(echo) + body(whole_store.substr(0, whole_store.size() - 52))));
  seeds.Add("command", door(3, store));
  seeds.Add("response", door(3, CommandOf(dimse::kStoreRequest | dimse::kResponse, false)));
  seeds.Add("acceptor_echo", door(4, request + echo + release));
  seeds.Add("acceptor_store", door(4, request + whole_store + pieces + echo + release));
  seeds.Add("acceptor_abort", door(4, request + echo + dimse::EncodeAbort(false)));
  seeds.Add("requestor", door(5, accept + echo + whole_store + release));
  seeds.Add("requestor_rejected", door(5, dimse::EncodeAssociateReject(dimse::kCongested)));
}

// ---- Navigate -------------------------------------------------------------------------------------------------------

using server::FrameHeaderFor;
using server::kFrameSide;

std::string Step(NavigateStep step, const std::string& rest = "", bool second = false) {
  return static_cast<char>(static_cast<uint8_t>(step) | (second ? kSecondStream : 0)) + rest;
}
std::string Config(const v1::NavigateConfig& config, bool second = false) {
  v1::NavigateRequest request;
  *request.mutable_config() = config;
  return Step(NavigateStep::kMessage, request.SerializeAsString(), second);
}
std::string Frame(int number_step, Spoil spoil = Spoil::kNothing, bool second = false) {
  const std::string rest = {static_cast<char>(number_step), 0, 1, static_cast<char>(spoil)};
  return Step(NavigateStep::kFrame, rest, second);
}
std::string Milliseconds(int count) {
  return Step(NavigateStep::kWait, {static_cast<char>(count & 0xff), static_cast<char>(count >> 8)});
}

v1::NavigateConfig RigidConfig() {
  v1::NavigateConfig config;
  config.set_fixed("volumes/resident");
  v1::RigidStage& rigid = *config.mutable_options()->add_stages()->mutable_rigid();
  rigid.set_levels(1);
  rigid.set_iterations(1);
  config.set_session_id("s0");
  config.mutable_resume_window()->set_seconds(5);
  return config;
}

void MakeNavigate(const fs::path& folder) {
  const Seeds seeds(folder, "navigate");
  const std::string end = Step(NavigateStep::kEnd), broken = Step(NavigateStep::kBreak), wait = Milliseconds(20);
  seeds.Add("plain", JoinParts({Config(RigidConfig()), Frame(1), Frame(1), wait, Frame(2), wait, end}));

  v1::NavigateConfig field = RigidConfig();
  field.mutable_options()->mutable_stages(0)->clear_rigid();
  v1::LogDemonsStage& demons = *field.mutable_options()->mutable_stages(0)->mutable_log_demons();
  demons.set_levels(1);
  demons.set_iterations(1);
  field.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
  field.set_coarse_field(true);
  seeds.Add("field", JoinParts({Config(field), Frame(1), wait, Frame(1), wait, end}));

  v1::NavigateConfig latest = RigidConfig();
  latest.set_overload_policy(v1::OVERLOAD_POLICY_LATEST_WINS);
  latest.set_cancel_running(true);
  latest.set_max_pending(2);
  latest.mutable_frame_deadline()->set_nanos(5000000);
  latest.set_late_frames(v1::LATE_FRAMES_DELIVER);
  latest.set_rate_hz(10);
  *latest.mutable_frame_geometry() = FrameHeaderFor(1, kFrameSide).geometry();
  latest.set_frame_pixel_type(v1::PIXEL_TYPE_FLOAT32);
  seeds.Add("latest", JoinParts({Config(latest), Frame(1), Frame(1), Frame(1), Frame(1), Frame(1), wait, end}));

  v1::NavigateConfig again = RigidConfig();
  again.set_resume(true);
  seeds.Add("resumed",
            JoinParts({Config(RigidConfig()), Frame(1), wait, broken, wait, Config(again), Frame(1), wait, end}));
  seeds.Add("taken_over", JoinParts({Config(RigidConfig()), wait, Frame(1), Config(again, true), wait,
                                     Frame(1, Spoil::kNothing, true), wait, Frame(1), end}));
  seeds.Add("spoilt", JoinParts({Config(RigidConfig()), wait, Frame(1, Spoil::kChecksum), Frame(1, Spoil::kOffset),
                                 Frame(1, Spoil::kMissing), Frame(1, Spoil::kTwice), wait, end}));
  seeds.Add("closed", JoinParts({Config(RigidConfig()), wait, Frame(1), Step(NavigateStep::kClose), wait, end}));
  v1::NavigateConfig affine = RigidConfig();
  affine.clear_session_id();
  affine.clear_fixed();
  affine.set_moving("volumes/resident");
  affine.mutable_options()->mutable_initial_affine()->add_values(1);
  affine.mutable_options()->mutable_budget()->set_seconds(1);
  affine.mutable_options()->set_best_effort(true);
  seeds.Add("moving", JoinParts({Config(affine), Frame(1), wait, end}));
}

// ---- Calls ----------------------------------------------------------------------------------------------------------

std::string Message(const char* method, const google::protobuf::Message& message, bool goes_on = false) {
  const auto& methods = Methods();
  size_t index = 0;
  while (index < methods.size() && methods[index]->name() != method) ++index;
  return static_cast<char>(index | (goes_on ? kGoesOn : 0)) + message.SerializeAsString();
}

// An upload of these bytes, in one chunk.
std::vector<std::string> Upload(v1::UploadHeader header, const std::string& bytes) {
  header.set_total_bytes(static_cast<int64_t>(bytes.size()));
  header.set_sha256(io::Sha256Of(bytes.data(), bytes.size()));
  v1::UploadRequest first, second;
  *first.mutable_header() = std::move(header);
  if (bytes.empty()) return {Message("Upload", first)};
  *second.mutable_chunk() = server::MakeChunk(0, bytes);
  return {Message("Upload", first), Message("Upload", second, true)};
}

std::string FloatBytes(const std::vector<float>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), 4 * values.size());
}

v1::UploadHeader VolumeHeader(const std::string& id) {
  v1::UploadHeader header;
  header.set_id(id);
  header.set_upload_id("upload-" + id);
  *header.mutable_volume()->mutable_geometry() = FrameHeaderFor(1, kFrameSide).geometry();
  header.mutable_volume()->set_pixel_type(v1::PIXEL_TYPE_FLOAT32);
  return header;
}

void MakeVolumeCalls(const Seeds& seeds) {
  std::vector<std::string> parts = Upload(VolumeHeader("up"), FloatBytes(server::FrameVoxels(1)));
  v1::GetUploadStatusRequest status;
  status.set_upload_id("upload-up");
  v1::GetVolumeRequest get;
  get.set_name("volumes/up");
  v1::ListVolumesRequest list;
  list.set_page_size(1);
  v1::DeleteVolumeRequest remove;
  remove.set_name("volumes/up");
  v1::DownloadRequest download;
  download.set_name("volumes/up");
  for (const std::string& part :
       {Message("GetUploadStatus", status), Message("GetVolume", get), Message("ListVolumes", list),
        Message("Download", download), Message("DeleteVolume", remove)}) {
    parts.push_back(part);
  }
  seeds.Add("volume", JoinParts(parts));
}

void MakeRegisterCalls(const Seeds& seeds) {
  std::vector<std::string> parts = Upload(VolumeHeader("up"), FloatBytes(server::FrameVoxels(2)));
  v1::RegisterRequest registers;
  registers.set_fixed("volumes/resident");
  registers.set_moving("volumes/up");
  registers.set_transform_id("t");
  registers.set_request_id("request-1");
  v1::FfdStage& ffd = *registers.mutable_options()->add_stages()->mutable_ffd();
  ffd.set_metric(v1::METRIC_SSD);
  ffd.set_levels(1);
  ffd.set_iterations(1);
  registers.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT16);
  v1::GetTransformRequest get;
  get.set_name("transforms/t");
  v1::ListTransformsRequest list;
  v1::WarpVolumeRequest warp;
  warp.set_transform("transforms/t");
  warp.set_moving("volumes/up");
  warp.set_like_volume("volumes/resident");
  v1::MapPointsRequest points;
  points.set_transform("transforms/t");
  for (int i = 0; i < 6; ++i) points.add_points(i);
  v1::DownloadRequest download;
  download.set_name("transforms/t");
  download.mutable_field()->set_encoding(v1::FIELD_ENCODING_INT16);
  v1::DeleteTransformRequest remove;
  remove.set_name("transforms/t");
  for (const std::string& part :
       {Message("Register", registers), Message("GetTransform", get), Message("ListTransforms", list),
        Message("WarpVolume", warp), Message("MapPoints", points), Message("Download", download),
        Message("DeleteTransform", remove)}) {
    parts.push_back(part);
  }
  seeds.Add("register", JoinParts(parts));
  v1::UploadHeader affine;
  affine.set_id("t");
  affine.set_upload_id("upload-t");
  for (int i = 0; i < 16; ++i) affine.mutable_transform()->mutable_affine()->add_values(i % 5 == 0 ? 1 : 0);
  parts = Upload(affine, "");
  parts.push_back(Message("MapPoints", points));
  seeds.Add("transform", JoinParts(parts));
}

void MakeMatrixCalls(const Seeds& seeds) {
  v1::UploadHeader header;
  header.set_id("m");
  header.set_upload_id("upload-m");
  v1::SparseMatrixShape& shape = *header.mutable_sparse_matrix()->mutable_shape();
  shape.set_rows(2);
  shape.set_columns(2);
  shape.set_entries(2);
  shape.set_value_type(v1::VALUE_TYPE_FLOAT32);
  const int64_t offsets[] = {0, 1, 2};
  const int32_t columns[] = {0, 1};
  const float values[] = {1, 2};
  const std::string bytes = std::string(reinterpret_cast<const char*>(offsets), sizeof(offsets)) +
                            std::string(reinterpret_cast<const char*>(columns), sizeof(columns)) +
                            std::string(reinterpret_cast<const char*>(values), sizeof(values));
  std::vector<std::string> parts = Upload(header, bytes);
  v1::MultiplyRequest multiply;
  multiply.set_a("sparseMatrices/m");
  multiply.set_b("sparseMatrices/m");
  multiply.mutable_keep()->set_id("product");
  v1::MultiplyTripleRequest triple;
  triple.set_a("sparseMatrices/m");
  triple.set_p("sparseMatrices/m");
  triple.mutable_options()->set_reuse_plan(true);
  v1::ListSparseMatricesRequest list;
  v1::DownloadRequest download;
  download.set_name("sparseMatrices/m");
  for (const std::string& part : {Message("Multiply", multiply), Message("MultiplyTriple", triple),
                                  Message("ListSparseMatrices", list), Message("Download", download)}) {
    parts.push_back(part);
  }
  seeds.Add("matrix", JoinParts(parts));
}

void MakeSessionCalls(const Seeds& seeds) {
  v1::NavigateRequest config, frame, chunk;
  *config.mutable_config() = RigidConfig();
  *frame.mutable_frame() = FrameHeaderFor(1, kFrameSide);
  *chunk.mutable_chunk() = server::FrameChunks(1, kFrameSide, 1)[0];
  v1::GetSessionRequest get;
  get.set_name("sessions/s0");
  v1::CloseSessionRequest close;
  close.set_name("sessions/s0");
  seeds.Add("session", JoinParts({Message("Navigate", config), Message("Navigate", frame, true),
                                  Message("Navigate", chunk, true), Message("GetSession", get),
                                  Message("ListSessions", v1::ListSessionsRequest()), Message("CloseSession", close)}));
  seeds.Add("info", JoinParts({Message("GetServerInfo", v1::GetServerInfoRequest())}));
}

void MakeCalls(const fs::path& folder) {
  const Seeds seeds(folder, "calls");
  MakeVolumeCalls(seeds);
  MakeRegisterCalls(seeds);
  MakeMatrixCalls(seeds);
  MakeSessionCalls(seeds);
}

}  // namespace
}  // namespace intrawarp::fuzz

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  intrawarp::fuzz::DicomSeeds(argv[1]).Make();
  intrawarp::fuzz::MakeDimse(argv[1]);
  intrawarp::fuzz::MakeNavigate(argv[1]);
  intrawarp::fuzz::MakeCalls(argv[1]);
  return 0;
}
