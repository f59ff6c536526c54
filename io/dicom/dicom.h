// SPDX-License-Identifier: Apache-2.0
// DICOM in: a folder, a DICOMDIR or a file becomes volumes in LPS mm, or a precise refusal.
//
// Grouping. A volume is made of the frames (slices of single-frame files, frames of multi-frame files, tiles of Siemens
// mosaics) of one series, study, patient and frame of reference that agree in orientation, size, pixel spacing, kind of
// image, echo time and b-value. Where some of the images of a series lack an attribute of another value than the
// reader's default (agreement.h), its volumes are refused. Phases that cover the same positions (temporal position,
// acquisition number, trigger time) are volumes of their own. Frames are ordered by position along the normal, never by
// name or number.
//
// Geometry. Spacing between slices comes from positions. Slices that are missing, unevenly spaced or sheared (gantry
// tilt) are refused unless `resample` asks for linear interpolation onto an even grid. Of several frames at one
// position all but one are dropped when their pixels are equal, and are an error otherwise. The third axis is the
// normal, so that directions are right-handed. A single image is a 2-D volume.
//
// A binary segmentation makes a mask of 0 and 1 for each segment; planes that its file leaves out are empty.
//
// Intensities. Stored values with the slope and intercept of the file where all frames share them (CT: Hounsfield
// units), rescaled float32 values where they do not. Padding becomes air: -1000 HU in CT, otherwise the smallest
// value of the volume. MONOCHROME1 is not inverted.
//
// Privacy. Nothing that identifies a patient leaves the reader: series and frames of reference are told apart by
// SHA-256 over a fixed prefix and their UID, and no message, note or entry holds a text of a file other than a modality
// that DICOM defines. A hash of a UID is a pseudonym: who knows the UID can recognise it.
//
// Files are taken for hostile (dataset.h). Errors begin with the field at fault: "series: ...", "slices: ...",
// "patient: ...", "position: ...", "orientation: ...", "spacing: ...", "size: ...", "frames: ...", "bits: ...",
// "photometric: ...", "rescale: ...", "transfer_syntax: ...", "mosaic: ...", "data: ...", "nesting: ...", "file: ...".
// Codes: INVALID_ARGUMENT for what makes no volume, DATA_LOSS for truncated or corrupt data, RESOURCE_EXHAUSTED above a
// limit, UNIMPLEMENTED by name, NOT_FOUND where there is no DICOM.
//
// Thread-safe functions; the results are plain values.
#ifndef INTRAWARP_IO_DICOM_DICOM_H_
#define INTRAWARP_IO_DICOM_DICOM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/geometry/geometry.h"
#include "io/format/nifti.h"

namespace intrawarp::io {

// Finds room for so many bytes of host memory, which are taken until the pointer goes.
using DicomRoomFn = std::function<absl::StatusOr<std::shared_ptr<const void>>(int64_t bytes)>;

struct DicomLimits {
  int max_files = 100000;
  int max_folder_depth = 16;
  int64_t max_file_bytes = int64_t{4} << 30;
  // The bytes of all files that are looked at.
  int64_t max_total_bytes = int64_t{256} << 30;
  int64_t max_frames = 500000;
  int max_volumes = 4096;
  int64_t max_volume_bytes = kDefaultMaxVolumeBytes;
  // A deflated data set may have max_file_bytes, and no more than this many bytes and so many times those of its file.
  int64_t max_inflated_bytes = int64_t{256} << 20;
  int64_t max_inflation = 100;
  // Asked before a file is read, for the file and its parsed values, and before a deflated one is inflated, for what it
  // then has; its errors are passed on. Empty: there is room.
  DicomRoomFn room = {};
};

struct DicomOptions {
  // Which volume: empty for the only one; its index in the listing, from 1; or the hash of its series, of which the
  // first eight digits or more will do.
  std::string series = {};
  // Missing, uneven and sheared slices are interpolated linearly onto an even grid.
  bool resample = false;
  // Padding keeps its stored value.
  bool keep_padding = false;
  DicomLimits limits = {};
};

struct DicomProvenance {
  // A defined term of DICOM's Modality ("CT", "MR", ...), or empty.
  std::string modality;
  // 64 hexadecimal digits each, or empty where the file has no UID.
  std::string series;
  std::string frame_of_reference;
  // A hash of the study and the patient: it tells series apart whose UIDs agree by mistake. A patient's number is soon
  // guessed, so that this hash stays on the machine that made it. Always there.
  std::string subject;
};

// A volume that the files hold, or that they fail to make.
struct DicomEntry {
  DicomProvenance provenance;
  // OK when ReadDicom will read it, as far as headers tell.
  absl::Status status;
  // With an OK status.
  Geometry geometry;
  int64_t files = 0;
  int64_t frames = 0;
  // The images of its series and subject that are here, and how many there are by what the images say themselves
  // (ImagesInAcquisition and the like); -1: they do not say.
  int64_t series_images = 0;
  int64_t announced_images = -1;
  // From the first file: the SHA-256 of its SOP instance UID, in hexadecimal digits, empty where it has none; and
  // INVALID_ARGUMENT "uid: KEYWORD ..." where one of its UIDs is not valid. The reader takes it all the same.
  std::string instance;
  absl::Status uids;
  // A picture in colour (a capture of the screen, say): it is refused, and is not a slice of its series.
  bool is_colour = false;
  // A user should know this: dropped duplicates, interpolation, a missing position.
  std::vector<std::string> notes;
};

struct DicomListing {
  // In an order that depends on contents alone: most frames first.
  std::vector<DicomEntry> volumes;
  int64_t files = 0;
  // Files without an image (plans, reports, directories), and files that are not DICOM.
  int64_t not_images = 0;
  int64_t not_dicom = 0;
  // Broken files that do not say which series they belong to.
  int64_t broken = 0;
};

struct DicomVolume {
  HostVolume volume;
  DicomProvenance provenance;
  std::vector<std::string> notes;
};

// Lists what a path (a folder, searched with all below it; a DICOMDIR; a file) holds. `options.series` does not matter.
absl::StatusOr<DicomListing> ListDicom(const std::string& path, const DicomOptions& options = {});

// One volume. INVALID_ARGUMENT "series: ..." with the choices when the path holds several and `options.series` names
// none; NOT_FOUND "series: ..." when it names one that is not there.
absl::StatusOr<DicomVolume> ReadDicom(const std::string& path, const DicomOptions& options = {});

// Each entry of ListDicom in its order, from one look at the files. `read` reads the entry's volume, or gives the
// entry's status where that is not OK; it is valid during the call, so that `take` can find room for the volume first.
absl::Status ReadEachDicom(
    const std::string& path, const DicomOptions& options,
    const std::function<void(const DicomEntry& entry, const std::function<absl::StatusOr<DicomVolume>()>& read)>& take);

// DATA_LOSS where the file ends before its data set or its pixels do; NOT_FOUND "file: is not DICOM";
// RESOURCE_EXHAUSTED as of ReadDicom. OK for whole files, whether ReadDicom can use them or not.
absl::Status CheckWholeFile(const std::string& path, const DicomLimits& limits = {});

// The hash of a series' UID, as DicomProvenance::series has it; empty for an empty one.
std::string SeriesHash(absl::string_view uid);

// Whether DICOM defines this term for Modality (PS3.3 C.7.3.1.1.1).
bool IsModality(absl::string_view term);

// True for a folder and for a file that begins like DICOM.
bool LooksLikeDicom(const std::string& path);

// "1: CT 512x512x22 0.977x0.977x2 mm, series 0123456789abcdef" for messages and tables.
std::string DescribeDicomEntry(const DicomEntry& entry, int64_t index);

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_DICOM_DICOM_H_
