// SPDX-License-Identifier: Apache-2.0
// DCMTK's state for the whole process: its log silenced (it quotes values of files), decoders registered, dictionary
// loaded.
#ifndef INTRAWARP_IO_DICOM_TOOLKIT_H_
#define INTRAWARP_IO_DICOM_TOOLKIT_H_

#include "absl/status/status.h"

namespace intrawarp::io::dicom {

// Does its work at the first call. FAILED_PRECONDITION "dictionary: ..." when DCMTK does not find its data dictionary,
// without which files of implicit VR cannot be read. Thread-safe.
absl::Status StartToolkit();

}  // namespace intrawarp::io::dicom

#endif  // INTRAWARP_IO_DICOM_TOOLKIT_H_
