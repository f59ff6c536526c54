// SPDX-License-Identifier: Apache-2.0
// The images of a series must agree on what their values mean. Thread-safe functions.
#ifndef INTRAWARP_IO_DICOM_AGREEMENT_H_
#define INTRAWARP_IO_DICOM_AGREEMENT_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "io/dicom/instance.h"

namespace intrawarp::io::dicom {

// The series that contradict themselves, by the hash of their UID. INVALID_ARGUMENT "FIELD: KEYWORD ..." where some of
// the images of one kind and size lack an attribute, for which the reader would take a default that is not the value of
// the others: a slice without its RescaleSlope, say, would come out at another scale than its neighbours. (An echo time
// tells volumes apart, and is missed only where most images have one.) "photometric:
// ..." where only some of them are MONOCHROME1.
std::map<std::string, absl::Status> Contradictions(const std::vector<Instance>& instances);

}  // namespace intrawarp::io::dicom

#endif  // INTRAWARP_IO_DICOM_AGREEMENT_H_
