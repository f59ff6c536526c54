// SPDX-License-Identifier: Apache-2.0
#include "client/cli/report_json.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "google/protobuf/text_format.h"

namespace intrawarp::cli {
namespace {

v1::Report Filled() {
  v1::Report report;
  const bool parsed = google::protobuf::TextFormat::ParseFromString(
      R"pb(
        device: "cuda:0"
        stop_reason: STOP_REASON_CONVERGED
        stages {
          stop_reason: STOP_REASON_ITERATION_LIMIT
          levels { size: 8 size: 9 size: 1 iterations: 12 value_before: 0.5 value_after: 0.25 }
        }
        stages { stop_reason: STOP_REASON_CONVERGED }
        options {
          stages { rigid { metric: METRIC_NGF levels: 1 } }
          stages { affine { metric: METRIC_SSD } }
          best_effort: false
        }
        affine { values: [ 1, 0, 0, 2.5, 0, 1, 0, -3, 0, 0, 1, 4, 0, 0, 0, 1 ] }
        before { mse: 4 sse: 40 mae: 1.5 ncc: 0.25 nmi: 1.125 ssim: 0.5 }
        after { mse: 0 sse: 0 mae: 0 }
        overlap: 0.75
        affine_shape { min_stretch: 0.75 max_stretch: 1.25 mirrors: false }
        jacobian { min: 0.5 max: 2 nonpositive_fraction: 0 }
        inverse_consistency { mean_mm: 0.125 max_mm: 0.5 }
        error {
          quantile: 0.95
          expected_mm: 1.5
          bound_mm: 3
          bound_p95_mm: 6
          bound_max_mm: 12
          judged_fraction: 0.5
          agreement: 0.875
          chance: 0.0625
          affine_expected_mm: 4
          affine_agreement: 0.5
          rejected_gain: 0.125
          reach_mm: 14
        }
        verdict: VERDICT_REVIEW
        reasons { cause: VERDICT_CAUSE_LOW_OVERLAP message: "low overlap" value: 0.25 limit: 0.4 }
        reasons { cause: VERDICT_CAUSE_NOT_CONVERGED message: "not converged" }
        starts {
          kind: START_KIND_ROTATION
          rotation_deg: 90
          score_before: 0.5
          score_after: 0.125
          overlap: 1
          end { values: [ 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1 ] }
        }
        starts { kind: START_KIND_CENTER_OF_MASS score_after: 0.25 overlap: 0.75 }
        start_margin: 0.25
        same_frame_of_reference: true
        choice {
          text: "ngf, then nmi."
          affine { metric: METRIC_NGF has_result: true chosen: true }
          correlation: 0.5
          reason: CHOICE_REASON_OTHER_INTENSITIES
          deformations {
            metric: METRIC_NMI
            bending_weight: 0.5
            gain: 0.125
            deformation_mm: 4
            contradicts: true
            chosen: true
            searched: true
            refined: true
          }
        }
        latency {
          receive_ms: 1
          admit_ms: 2
          queue_ms: 3
          upload_ms: 4
          prepare_ms: 5
          optimise_ms: 6
          assess_ms: 7
          encode_ms: 8
          download_ms: 9
          send_ms: 10
          total_ms: 55.5
        }
        provenance {
          server_version: "0.1.0"
          receive_time { seconds: 1764120600 }
          fixed: "volumes/f"
          fixed_digest: "\x01\x02"
        }
      )pb",
      &report);
  EXPECT_TRUE(parsed);
  return report;
}

TEST(ReportJsonTest, Golden) {
  const std::string expected = R"json({
  "method": "rigid,affine",
  "device": "cuda:0",
  "stop_reason": "converged",
  "stages": [
    {
      "name": "rigid",
      "metric": "ngf",
      "stop_reason": "iteration_limit",
      "levels": [
        {
          "size": [
            8,
            9,
            1
          ],
          "iterations": 12,
          "value_before": 0.5,
          "value_after": 0.25
        }
      ],
      "second_layer_fraction": null
    },
    {
      "name": "affine",
      "metric": "ssd",
      "stop_reason": "converged",
      "levels": [],
      "second_layer_fraction": null
    }
  ],
  "matrix": [
    [
      1.0,
      0.0,
      0.0,
      2.5
    ],
    [
      0.0,
      1.0,
      0.0,
      -3.0
    ],
    [
      0.0,
      0.0,
      1.0,
      4.0
    ],
    [
      0.0,
      0.0,
      0.0,
      1.0
    ]
  ],
  "similarity": {
    "before": {
      "mse": 4.0,
      "sse": 40.0,
      "mae": 1.5,
      "ncc": 0.25,
      "nmi": 1.125,
      "ssim": 0.5
    },
    "after": {
      "mse": 0.0,
      "sse": 0.0,
      "mae": 0.0,
      "ncc": null,
      "nmi": null,
      "ssim": null
    }
  },
  "overlap": 0.75,
  "affine_shape": {
    "min_stretch": 0.75,
    "max_stretch": 1.25,
    "mirrors": false
  },
  "jacobian": {
    "min": 0.5,
    "max": 2.0,
    "nonpositive_fraction": 0.0
  },
  "inverse_consistency_mm": {
    "mean": 0.125,
    "max": 0.5
  },
  "predicted_error_mm": {
    "quantile": 0.95,
    "expected": 1.5,
    "bound": 3.0,
    "bound_p95": 6.0,
    "bound_max": 12.0,
    "judged_fraction": 0.5,
    "agreement": 0.875,
    "chance": 0.0625,
    "affine_expected": 4.0,
    "affine_agreement": 0.5,
    "deformation": null,
    "rejected_gain": 0.125,
    "reach_mm": 14.0,
    "worst_region_expected_mm": null,
    "worst_region_agreement": null,
    "visible_fraction": null
  },
  "verdict": "review",
  "reasons": [
    "low overlap",
    "not converged"
  ],
  "reason_details": [
    {
      "cause": "low_overlap",
      "message": "low overlap",
      "value": 0.25,
      "limit": 0.4,
      "text": "low overlap (overlap 0.25, limit 0.4)"
    },
    {
      "cause": "not_converged",
      "message": "not converged",
      "value": null,
      "limit": null,
      "text": "not converged"
    }
  ],
  "starts": [
    {
      "kind": "rotation",
      "rotation_deg": 90.0,
      "offset_mm": null,
      "score_before": 0.5,
      "score_after": 0.125,
      "overlap": 1.0,
      "matrix": [
        [
          1.0,
          0.0,
          0.0,
          0.0
        ],
        [
          0.0,
          1.0,
          0.0,
          0.0
        ],
        [
          0.0,
          0.0,
          1.0,
          0.0
        ],
        [
          0.0,
          0.0,
          0.0,
          1.0
        ]
      ]
    },
    {
      "kind": "center_of_mass",
      "rotation_deg": 0.0,
      "offset_mm": null,
      "score_before": null,
      "score_after": 0.25,
      "overlap": 0.75,
      "matrix": null
    }
  ],
  "slice_pose": null,
  "missing_tissue": null,
  "landmarks": null,
  "same_frame_of_reference": true,
  "start_margin": 0.25,
  "choice": {
    "text": "ngf, then nmi.",
    "affine": [
      {
        "metric": "ngf",
        "has_result": true,
        "predicted_error_mm": null,
        "chosen": true
      }
    ],
    "correlation": 0.5,
    "correlation_ratio": null,
    "reason": "other-intensities",
    "deformations": [
      {
        "metric": "nmi",
        "bending_weight": 0.5,
        "predicted_error_mm": null,
        "gain": 0.125,
        "deformation_mm": 4.0,
        "contradicts": true,
        "accepted": false,
        "chosen": true,
        "searched": true,
        "refined": true
      }
    ]
  },
  "latency_ms": {
    "receive": 1.0,
    "admit": 2.0,
    "queue": 3.0,
    "upload": 4.0,
    "prepare": 5.0,
    "optimise": 6.0,
    "assess": 7.0,
    "encode": 8.0,
    "download": 9.0,
    "send": 10.0,
    "total": 55.5
  },
  "options": {
    "stages": [
      {
        "rigid": {
          "metric": "METRIC_NGF",
          "levels": 1
        }
      },
      {
        "affine": {
          "metric": "METRIC_SSD"
        }
      }
    ],
    "best_effort": false
  },
  "provenance": {
    "server_version": "0.1.0",
    "server_revision": null,
    "receive_time": "2025-11-26T01:30:00.000Z",
    "report_time": null,
    "fixed": "volumes/f",
    "moving": null,
    "fixed_digest": "0102",
    "moving_digest": null,
    "fixed_mask_digest": null,
    "moving_mask_digest": null,
    "fixed_weight_digest": null,
    "moving_weight_digest": null
  }
}
)json";
  EXPECT_EQ(JsonText(ReportToJson("rigid,affine", Filled())), expected);
}

TEST(ReportJsonTest, ARecordSaysWhatWasDone) {
  const ReportRecord record = {"transforms/a", {{"fixed", "ct.nii.gz"}}, {"register", "--fixed=ct.nii.gz"}};
  const Json json = ReportToJson("rigid,affine", Filled(), record);
  EXPECT_EQ(json["schema_version"], kReportSchemaVersion);
  EXPECT_EQ(json["transform"], "transforms/a");
  EXPECT_EQ(json["inputs"]["fixed"], "ct.nii.gz");
  EXPECT_EQ(json["command_line"].dump(), R"(["register","--fixed=ct.nii.gz"])");
  EXPECT_NE(json["client"]["version"], "");
  const nlohmann::ordered_json plain = ReportToJson("rigid,affine", Filled());
  for (const auto& [name, value] : plain.items()) EXPECT_EQ(json[name], value) << name;
  EXPECT_EQ(MethodOf(Filled()), "auto") << "the server chose";
  v1::Report named = Filled();
  named.clear_choice();
  EXPECT_EQ(MethodOf(named), "rigid,affine");
}

TEST(ReportJsonTest, WhatIsUndefinedIsNull) {
  v1::Report report = Filled();
  report.clear_inverse_consistency();
  report.clear_affine();
  report.clear_error();
  report.mutable_before()->set_ncc(std::numeric_limits<double>::quiet_NaN());
  report.mutable_jacobian()->set_max(std::numeric_limits<double>::infinity());
  report.set_verdict(v1::VERDICT_UNSPECIFIED);
  const Json json = ReportToJson("affine", report);
  EXPECT_TRUE(json["inverse_consistency_mm"].is_null());
  EXPECT_TRUE(json["matrix"].is_null());
  EXPECT_TRUE(json["predicted_error_mm"].is_null());
  EXPECT_TRUE(json["similarity"]["before"]["ncc"].is_null());
  EXPECT_TRUE(json["jacobian"]["max"].is_null());
  EXPECT_TRUE(json["verdict"].is_null());
  EXPECT_EQ(json["jacobian"]["min"], 0.5);
}

// 0 and null differ: nothing slid, and nobody asked.
TEST(ReportJsonTest, AStageTellsItsSecondLayer) {
  v1::Report report = Filled();
  report.mutable_stages(1)->set_second_layer_fraction(0.25);
  EXPECT_EQ(ReportToJson("", report)["stages"][1]["second_layer_fraction"], 0.25);
  report.mutable_stages(1)->set_second_layer_fraction(0);
  const Json stages = ReportToJson("", report)["stages"];
  EXPECT_TRUE(stages[0]["second_layer_fraction"].is_null());
  EXPECT_EQ(stages[1]["second_layer_fraction"], 0.0);
}

TEST(ReportJsonTest, AFailedFrameHasItsCauseAndNoNumbers) {
  const Json json = FrameReportToJson("affine", "001.nii", {}, absl::FailedPreconditionError("no overlap"));
  EXPECT_EQ(json["frame"], "001.nii");
  EXPECT_EQ(json["error"], "FAILED_PRECONDITION: no overlap");
  EXPECT_EQ(json["method"], "affine");
  for (const char* name :
       {"device", "stop_reason", "stages", "matrix", "similarity", "overlap", "jacobian", "inverse_consistency_mm",
        "verdict", "reasons", "starts", "start_margin", "choice", "latency_ms", "options"}) {
    ASSERT_TRUE(json.contains(name)) << name;
    EXPECT_TRUE(json[name].is_null()) << name;
  }
}

TEST(ReportJsonTest, AGoodFrameHasTheReport) {
  const Json json = FrameReportToJson("affine", "001.nii", Filled(), absl::OkStatus());
  EXPECT_TRUE(json["error"].is_null());
  EXPECT_EQ(json["overlap"], 0.75);
  EXPECT_EQ(json["verdict"], "review");
}

TEST(ReportJsonTest, BytesThatAreNotUtf8AreReplaced) {
  const std::string text = JsonText(FrameReportToJson("affine", "a\xff.nii", {}, absl::OkStatus()));
  EXPECT_TRUE(Json::accept(text));
}

}  // namespace
}  // namespace intrawarp::cli
