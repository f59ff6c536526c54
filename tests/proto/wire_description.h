// SPDX-License-Identifier: Apache-2.0
// A wire contract as lines of text, one for each message, field, enum, value and method. Whatever breaks the wire (a
// thing removed, renumbered, renamed, of another type, cardinality or oneof) changes or removes a line; an addition
// adds one.
#ifndef INTRAWARP_TESTS_PROTO_WIRE_DESCRIPTION_H_
#define INTRAWARP_TESTS_PROTO_WIRE_DESCRIPTION_H_

#include <google/protobuf/descriptor.h>

#include <string>
#include <vector>

namespace intrawarp {

// The lines of one file, in its order.
std::vector<std::string> Describe(const google::protobuf::FileDescriptor& file);

// The lines of every file of the package intrawarp.v1 in a serialized FileDescriptorSet with its imports, in order of
// the files' names. Ends the process with a message when that cannot be read.
std::vector<std::string> DescribeContract(const std::string& descriptor_set_path);

struct ContractDifference {
  std::vector<std::string> broken;  // kept lines that are gone
  std::vector<std::string> added;   // lines that are not kept yet
};
ContractDifference Compare(const std::vector<std::string>& kept, const std::vector<std::string>& current);

}  // namespace intrawarp

#endif  // INTRAWARP_TESTS_PROTO_WIRE_DESCRIPTION_H_
