// The c10d backend "ridge_shm": torch's collectives on the rounds and messages of one group of ranks.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "group.hpp"

namespace ridge {

using Tensors = std::vector<at::Tensor>;
using c10d::OpType;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

class ShmWork : public c10d::Work {
 public:
  ShmWork(std::shared_ptr<Group> group, OpType type, const char* title, Tensors results, Tensors inputs);
  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override { return results_; }
  void synchronize() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds timeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  void ended();  // whoever ran it calls this, once
  std::shared_ptr<Task> task;        // one of the two
  std::shared_ptr<Message> message;

 private:
  std::string error() const;
  void complete(c10::ivalue::Future& future) const;

  std::shared_ptr<Group> group_;
  Tensors results_;
  Tensors inputs_;  // alive until it is done
  std::mutex future_mutex_;
  std::condition_variable ended_changed_;
  bool ended_ = false;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// Several works as one.
class ManyWork : public c10d::Work {
 public:
  explicit ManyWork(std::vector<WorkPointer> parts) : parts_(std::move(parts)) {}
  bool isCompleted() override;
  bool isSuccess() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  std::vector<WorkPointer> parts_;
};

class ProcessGroupShm : public c10d::Backend {
 public:
  ProcessGroupShm(std::shared_ptr<Group> group, int rank, int size, std::chrono::milliseconds timeout);
  ~ProcessGroupShm() override;
  const std::string getBackendName() const override { return "ridge_shm"; }
  c10::intrusive_ptr<Options> getBackendOptions() override;
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }
  void shutdown() override { group_->close(); }
  void abort() override { group_->abort(); }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return collectives_; }
  void startCoalescing() override;
  WorkPointer endCoalescing() override;

  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPointer allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPointer reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPointer allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override;
  WorkPointer allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                  const c10d::AllgatherOptions& opts) override;
  WorkPointer allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& opts) override;
  WorkPointer reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                             const c10d::ReduceScatterOptions& opts) override;
  WorkPointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                   const c10d::ReduceScatterOptions& opts) override;
  WorkPointer reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::ReduceScatterOptions& opts) override;
  WorkPointer gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override;
  WorkPointer scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) override;
  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                            std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts) override;
  WorkPointer alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPointer barrier(const c10d::BarrierOptions& opts) override;
  WorkPointer send(Tensors& tensors, int target, int tag) override;
  WorkPointer recv(Tensors& tensors, int source, int tag) override;
  WorkPointer recvAnysource(Tensors& tensors, int tag) override;

 private:
  struct Call {  // what all collectives have in common
    OpType type;
    const char* title;
    std::chrono::milliseconds timeout;
    bool async;
  };
  template <class Asked>
  static Call call(OpType type, const char* title, const Asked& opts);
  WorkPointer start(const Call& call, Tensors results, Tensors inputs, std::function<void(const Operation&)> run);
  WorkPointer message(Tensors& tensors, bool sends, int peer, int tag);
  Operation operation(const char* name, std::chrono::milliseconds timeout) const;

  std::shared_ptr<Group> group_;
  std::chrono::milliseconds timeout_;
  uint64_t collectives_ = 0;
  uint64_t messages_ = 0;
  bool coalescing_ = false;
  std::vector<WorkPointer> coalesced_;
};

// Agree with the other ranks over the store on one piece of memory, or say who is on another host.
c10::intrusive_ptr<c10d::Backend> create(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                         double timeout_s, int global_rank);

}  // namespace ridge
