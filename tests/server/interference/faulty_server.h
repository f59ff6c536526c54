// SPDX-License-Identifier: Apache-2.0
// The options of a server on the CPU whose device fails or hangs when a test says so.
#ifndef INTRAWARP_TESTS_SERVER_INTERFERENCE_FAULTY_SERVER_H_
#define INTRAWARP_TESTS_SERVER_INTERFERENCE_FAULTY_SERVER_H_

#include <memory>
#include <utility>

#include "server/options.h"
#include "tests/engine/device/faulty_device.h"

namespace intrawarp::server {

// `*opened` is the device once the server has started, and lives as long as the server. `opened` outlives the start.
inline ServerOptions OnFaultyDevice(ServerOptions options, FaultyDevice** opened) {
  options.device = "cpu";
  options.open_device = [opened](absl::string_view spec) -> absl::StatusOr<std::unique_ptr<Device>> {
    absl::StatusOr<std::unique_ptr<Device>> device = OpenDevice(spec);
    if (!device.ok()) return device.status();
    auto faulty = std::make_unique<FaultyDevice>(*std::move(device));
    *opened = faulty.get();
    return faulty;
  };
  return options;
}

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_INTERFERENCE_FAULTY_SERVER_H_
