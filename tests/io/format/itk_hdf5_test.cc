// SPDX-License-Identifier: Apache-2.0
// HDF5 files that lie, made with the library itself.
#include <hdf5.h>

#include <cstring>
#include <functional>
#include <limits>

#include "io/format/itk_transform.h"
#include "tests/engine/device_test.h"
#include "tests/io/io_test.h"

namespace intrawarp::io {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

void PutString(hid_t group, const char* name, const std::string& text) {
  const hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
  H5Tset_size(type, text.size() + 1);
  const hid_t set = H5Dcreate2(group, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  EXPECT_GE(H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, text.c_str()), 0);
  H5Dclose(set), H5Sclose(space), H5Tclose(type);
}

// A set of float64 with its creation plan; nothing is written for a count above that of the numbers.
void PutNumbers(hid_t group, const char* name, const std::vector<double>& numbers, hsize_t count,
                hid_t plan = H5P_DEFAULT, hid_t type = H5T_IEEE_F64LE) {
  const hid_t space = H5Screate_simple(1, &count, nullptr);
  const hid_t set = H5Dcreate2(group, name, type, space, H5P_DEFAULT, plan, H5P_DEFAULT);
  EXPECT_GE(set, 0);
  if (count == numbers.size()) {
    EXPECT_GE(H5Dwrite(set, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, numbers.data()), 0);
  }
  H5Dclose(set), H5Sclose(space);
}

const std::vector<double> kIdentity = {1, 0, 0, 0, 1, 0, 0, 0, 1, 10, 20, 30};

class ItkHdf5Test : public FileTest {
 protected:
  // A file whose group 0 `fill` fills.
  std::string File(const std::function<void(hid_t group)>& fill) {
    const std::string path = Path("t.h5");
    const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    const hid_t transforms = H5Gcreate2(file, "TransformGroup", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    const hid_t group = H5Gcreate2(transforms, "0", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    fill(group);
    H5Gclose(group), H5Gclose(transforms), H5Fclose(file);
    return path;
  }
  // An affine transform whose parameters `fill` writes.
  absl::StatusOr<ItkTransform> WithParameters(const std::function<void(hid_t group)>& fill) {
    return ReadItkTransform(File([&](hid_t group) {
      PutString(group, "TransformType", "AffineTransform_double_3_3");
      PutNumbers(group, "TransformFixedParameters", {0, 0, 0}, 3);
      fill(group);
    }));
  }
};

TEST_F(ItkHdf5Test, ReadsFixedStringsChunksAndTheOldNames) {
  const auto plain = WithParameters([](hid_t group) { PutNumbers(group, "TransformParameters", kIdentity, 12); });
  ASSERT_THAT(plain, Succeeds());
  EXPECT_EQ(plain->affine({1, 2, 3}), (Vec3d{11, 22, 33}));
  const auto old = ReadItkTransform(File([&](hid_t group) {
    PutString(group, "TransformType", "AffineTransform_float_3_3");
    PutNumbers(group, "TranformFixedParameters", {0, 0, 0}, 3);
    PutNumbers(group, "TranformParameters", kIdentity, 12, H5P_DEFAULT, H5T_IEEE_F32BE);
  }));
  ASSERT_THAT(old, Succeeds());
  EXPECT_EQ(old->affine({1, 2, 3}), (Vec3d{11, 22, 33}));
  const auto packed = WithParameters([](hid_t group) {
    const hid_t plan = H5Pcreate(H5P_DATASET_CREATE);
    const hsize_t chunk = 5;
    H5Pset_chunk(plan, 1, &chunk), H5Pset_shuffle(plan), H5Pset_deflate(plan, 5), H5Pset_fletcher32(plan);
    PutNumbers(group, "TransformParameters", kIdentity, 12, plan);
    H5Pclose(plan);
  });
  ASSERT_THAT(packed, Succeeds());
  EXPECT_EQ(packed->affine({1, 2, 3}), (Vec3d{11, 22, 33}));
}

TEST_F(ItkHdf5Test, RefusesOtherFiles) {
  EXPECT_THAT(ReadItkTransform(Put("t.h5", "no HDF5 file")), Fails(kDataLoss, "file: is not an HDF5"));
  EXPECT_THAT(ReadItkTransform(Put("t.h5", "")), Fails(kDataLoss, "file: is empty"));
  EXPECT_THAT(ReadItkTransform(Path("nothing.h5")), Fails(absl::StatusCode::kNotFound, "file: "));
  const hid_t file = H5Fcreate(Path("e.h5").c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  H5Fclose(file);
  EXPECT_THAT(ReadItkTransform(Path("e.h5")), Fails(kInvalid, "TransformGroup: is missing"));
  EXPECT_THAT(ReadItkTransform(Path("e.h5"), 10), Fails(absl::StatusCode::kResourceExhausted, "file: longer"));
}

TEST_F(ItkHdf5Test, RefusesSetsThatLie) {
  const auto parameters = [&](const std::vector<double>& numbers, hsize_t count) {
    return WithParameters([&](hid_t group) { PutNumbers(group, "TransformParameters", numbers, count); });
  };
  EXPECT_THAT(parameters(std::vector<double>(11, 1), 11), Fails(kInvalid, "Parameters: has 11"));
  EXPECT_THAT(parameters(kIdentity, 13), Fails(kInvalid, "Parameters: has 13"));
  EXPECT_THAT(parameters(kIdentity, hsize_t{1} << 60), Fails(kInvalid, "Parameters: has 1152921504606846976"));
  std::vector<double> broken = kIdentity;
  broken[4] = std::numeric_limits<double>::infinity();
  EXPECT_THAT(parameters(broken, 12), Fails(kInvalid, "Parameters: a number"));
  EXPECT_THAT(WithParameters([](hid_t) {}), Fails(kInvalid, "Parameters: is missing"));
  // Space that was never written to.
  EXPECT_THAT(parameters({}, 12), Fails(kDataLoss, "file: Parameters is cut short"));
  EXPECT_THAT(WithParameters([](hid_t group) {
                PutNumbers(group, "TransformParameters", kIdentity, 12, H5P_DEFAULT, H5T_STD_I32LE);
              }),
              Fails(kUnimplemented, "Parameters: must be float"));
  EXPECT_THAT(WithParameters([](hid_t group) {
                const hid_t plan = H5Pcreate(H5P_DATASET_CREATE);
                const hsize_t chunk = 12;
                H5Pset_chunk(plan, 1, &chunk), H5Pset_nbit(plan);
                PutNumbers(group, "TransformParameters", kIdentity, 12, plan);
                H5Pclose(plan);
              }),
              Fails(kUnimplemented, "Parameters: has a filter"));
  EXPECT_THAT(
      WithParameters([](hid_t group) {
        const hid_t plan = H5Pcreate(H5P_DATASET_CREATE);
        const hsize_t chunk = hsize_t{1} << 28;
        H5Pset_chunk(plan, 1, &chunk);
        const hsize_t most = H5S_UNLIMITED, count = 12;
        const hid_t space = H5Screate_simple(1, &count, &most);
        H5Dclose(H5Dcreate2(group, "TransformParameters", H5T_IEEE_F64LE, space, H5P_DEFAULT, plan, H5P_DEFAULT));
        H5Sclose(space), H5Pclose(plan);
      }),
      Fails(kUnimplemented, "Parameters: has chunks"));
  EXPECT_THAT(WithParameters([](hid_t group) {
                const hsize_t shape[2] = {3, 4};
                const hid_t space = H5Screate_simple(2, shape, nullptr);
                H5Dclose(H5Dcreate2(group, "TransformParameters", H5T_IEEE_F64LE, space, H5P_DEFAULT, H5P_DEFAULT,
                                    H5P_DEFAULT));
                H5Sclose(space);
              }),
              Fails(kInvalid, "Parameters: must have one dimension"));
}

// A file that leads to another file gets nothing of it.
TEST_F(ItkHdf5Test, RefusesLinksAndExternalStorage) {
  Put("secret", std::string(96, 'x'));
  EXPECT_THAT(WithParameters([&](hid_t group) {
                const hid_t plan = H5Pcreate(H5P_DATASET_CREATE);
                H5Pset_external(plan, Path("secret").c_str(), 0, 96);
                PutNumbers(group, "TransformParameters", {}, 12, plan);
                H5Pclose(plan);
              }),
              Fails(kUnimplemented, "Parameters: lies in other files"));
  EXPECT_THAT(WithParameters([&](hid_t group) {
                H5Lcreate_external("other.h5", "/x", group, "TransformParameters", H5P_DEFAULT, H5P_DEFAULT);
              }),
              Fails(kUnimplemented, "Parameters: is a link"));
  EXPECT_THAT(WithParameters([&](hid_t group) {
                H5Lcreate_soft("/TransformGroup/0/TransformFixedParameters", group, "TransformParameters", H5P_DEFAULT,
                               H5P_DEFAULT);
              }),
              Fails(kUnimplemented, "Parameters: is a link"));
  EXPECT_THAT(ReadItkTransform(File([](hid_t group) {
                H5Lcreate_external("other.h5", "/x", group, "TransformType", H5P_DEFAULT, H5P_DEFAULT);
              })),
              Fails(kUnimplemented, "TransformType: is a link"));
}

// Nothing of a list is dropped: what is not numbered from 0 on is not overlooked.
TEST_F(ItkHdf5Test, RefusesGroupsThatAreNotAList) {
  const std::string path = File([](hid_t group) {
    PutString(group, "TransformType", "IdentityTransform_double_3_3");
    const hid_t transforms = H5Gopen2(group, "/TransformGroup", H5P_DEFAULT);
    H5Gclose(H5Gcreate2(transforms, "2", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Gclose(transforms);
  });
  EXPECT_THAT(ReadItkTransform(path), Fails(kInvalid, "TransformGroup: is missing"));
  EXPECT_THAT(
      ReadItkTransform(File([](hid_t group) { PutString(group, "TransformType", "IdentityTransform_double_3_3"); })),
      Succeeds());
  EXPECT_THAT(ReadItkTransform(File([](hid_t group) { PutString(group, "TransformType", std::string(1000, 'x')); })),
              Fails(kInvalid, "TransformType: is too long"));
  EXPECT_THAT(ReadItkTransform(File([](hid_t group) { PutNumbers(group, "TransformType", {1}, 1); })),
              Fails(kInvalid, "TransformType: must be one string"));
  EXPECT_THAT(ReadItkTransform(File([](hid_t) {})), Fails(kInvalid, "TransformType: is missing"));
}

}  // namespace
}  // namespace intrawarp::io
