// SPDX-License-Identifier: Apache-2.0
// Prints the wire contract of this tree, in the form of proto/v1.desc.txt.
#include <cstdio>

#include "tests/proto/wire_description.h"

int main() {
  for (const std::string& line : intrawarp::DescribeContract(INTRAWARP_DESCRIPTOR_SET)) {
    std::printf("%s\n", line.c_str());
  }
}
