#include "rounds.hpp"

#include <algorithm>
#include <cstring>

namespace ridge {

namespace {

constexpr size_t kWhole = 16384;       // times the peers: a vector up to this is summed by every rank
constexpr size_t kPieces = 4;          // of a broadcast: they are read while the next is written
constexpr size_t kLeastPiece = 32 << 10;
constexpr size_t kReduceBlock = 8192;  // bytes summed and then copied while they are in the first cache

// The part of `size` bytes that chunk `index` of `chunk` bytes is.
size_t cut(size_t size, size_t index, size_t chunk) {
  size_t begin = index * chunk;
  return begin >= size ? 0 : std::min(chunk, size - begin);
}

size_t chunks_of(size_t size, size_t chunk) { return (size + chunk - 1) / chunk; }

std::string told(const SlotHead& head) {
  std::string text = std::string(kind_name(head.kind)) + " #" + std::to_string(head.number);
  if (head.bytes != ~0ULL) text += " of " + std::to_string(head.bytes) + " bytes";
  if (head.root >= 0) text += " with root " + std::to_string(head.root);
  return text;
}

}  // namespace

void Rounds::begin(Kind kind, int root, uint32_t flavour, uint64_t bytes, Operation op) {
  op_ = op;
  head_ = SlotHead{static_cast<uint32_t>(kind), root, flavour, 0, op.number, bytes};
  shared_.state(shared_.rank()).operation.store(op.number << 8 | kind, std::memory_order_relaxed);
}

char* Rounds::open() {
  char* slot = free_slot();
  shared_.head(shared_.rank(), round_ + 1) = head_;
  return slot;
}

char* Rounds::free_slot() {
  for (int peer = 0; peer < shared_.ranks(); ++peer)
    if (peer != shared_.rank()) shared_.await(peer, round_ + 2 - kDepth, op_);
  return shared_.payload(shared_.rank(), round_ + 1);
}

void Rounds::post() { shared_.post(++round_); }

const char* Rounds::read(int peer) {
  if (peer != shared_.rank()) {
    shared_.await(peer, round_, op_);
    const SlotHead& other = shared_.head(peer, round_);
    if (std::memcmp(&other, &head_, sizeof head_) != 0) {
      const bool sums = other.kind == head_.kind && other.flavour != head_.flavour;
      std::string why = sums ? ", with another dtype or reduce op" : "";
      shared_.fail(shared_.name(peer) + " calls " + told(other) + " while " + shared_.name(shared_.rank()) + " calls " +
                   told(head_) + why);
    }
  }
  return shared_.payload(peer, round_);
}

void Rounds::all_reduce(Bytes vector, const Reduction& how, Operation op) {
  begin(kAllReduce, -1, how.flavour, vector.size, op);
  size_t peers = static_cast<size_t>(std::max(shared_.ranks() - 1, 1));
  const Way taken = way(vector.size, [&](int) { return vector.data; });
  if (taken == kRead)
    sum_read(vector, how);
  else if (taken == kLent)
    sum_lent(vector, how);
  else if (vector.size * peers <= kWhole || peers == 1)
    sum_whole(vector, how);
  else
    sum_by_parts(vector, -1, how);
  end();
}

void Rounds::reduce(Bytes vector, int root, const Reduction& how, Operation op) {
  begin(kReduce, root, how.flavour, vector.size, op);
  sum_by_parts(vector, root, how);
}

void Rounds::sum_whole(Bytes vector, const Reduction& how) {
  const size_t ranks = shared_.ranks(), slot = shared_.slot_bytes();
  std::vector<const char*> sources(ranks);
  for (size_t index = 0, chunks = std::max<size_t>(chunks_of(vector.size, slot), 1); index < chunks; ++index) {
    char* own = vector.data + index * slot;
    const size_t size = cut(vector.size, index, slot);
    stores_.put(open(), own, size);
    post();
    for (size_t peer = 0; peer < ranks; ++peer) sources[peer] = read(peer);
    sources[shared_.rank()] = own;
    how.reduce(own, sources.data(), ranks, size / how.element, how.scale);
  }
}

// Rank d sums part d of each chunk. Only `root` copies the sums, or everyone where it is -1.
void Rounds::sum_by_parts(Bytes vector, int root, const Reduction& how) {
  const int ranks = shared_.ranks(), me = shared_.rank();
  const size_t room = shared_.slot_bytes() / (ranks + 1) / kLine * kLine;  // of a part
  const size_t chunk = std::min(room * ranks, (vector.size / ranks / kLine + 1) * kLine * ranks);
  const size_t part = chunk / ranks;
  const bool mine = root < 0 || root == me;
  const size_t chunks = chunks_of(vector.size, chunk);
  std::vector<const char*> sources(ranks);
  for (size_t index = 0; index <= chunks; ++index) {
    const size_t now = cut(vector.size, index, chunk), before = index ? cut(vector.size, index - 1, chunk) : 0;
    char* slot = open();  // the sums of the chunk before are in it already
    for (int peer = 0; peer < ranks; ++peer)
      if (peer != me) stores_.put(slot + peer * part, vector.data + index * chunk + peer * part, cut(now, peer, part));
    post();
    for (int step = 1; step < ranks; ++step) {
      int peer = (me + step) % ranks;
      const char* theirs = read(peer);
      if (mine) get(vector.data + (index - 1) * chunk + peer * part, theirs + chunk, cut(before, peer, part), false);
    }
    if (now == 0) continue;
    char* own = vector.data + index * chunk + me * part;
    char* sums = free_slot() + chunk;
    const size_t size = cut(now, me, part);
    for (size_t at = 0; at < size; at += kReduceBlock) {
      size_t block = std::min(kReduceBlock, size - at);
      for (int peer = 0; peer < ranks; ++peer)
        sources[peer] = peer == me ? own + at : shared_.payload(peer, round_) + me * part + at;
      char* out = mine ? own + at : sums + at;
      how.reduce(out, sources.data(), ranks, block / how.element, how.scale);
      if (mine && root < 0) stores_.put(sums + at, out, block);
    }
  }
}

void Rounds::reduce_scatter(const std::vector<Bytes>& parts, Bytes own, const Reduction& how, Operation op) {
  const int ranks = shared_.ranks(), me = shared_.rank();
  size_t total = 0, largest = 0;
  for (const Bytes& part : parts) total += part.size, largest = std::max(largest, part.size);
  begin(kReduceScatter, -1, how.flavour, total, op);
  const Way taken = way(total, [&](int peer) { return parts[peer].data; });
  if (taken == kRead) return scatter_read(parts, own, how, 0), end();
  if (taken == kLent) return scatter_lent(parts, own, largest, how), end();
  const size_t piece = shared_.slot_bytes() / ranks / kLine * kLine;
  std::vector<const char*> sources(ranks);
  for (size_t index = 0, chunks = std::max<size_t>(chunks_of(largest, piece), 1); index < chunks; ++index) {
    char* slot = open();
    for (int peer = 0; peer < ranks; ++peer)
      if (peer != me) stores_.put(slot + peer * piece, parts[peer].data + index * piece, cut(parts[peer].size, index, piece));
    post();
    const size_t size = cut(own.size, index, piece);
    for (int peer = 0; peer < ranks; ++peer)
      sources[peer] = peer == me ? parts[me].data + index * piece : read(peer) + me * piece;
    how.reduce(own.data + index * piece, sources.data(), ranks, size / how.element, how.scale);
  }
  end();
}

void Rounds::all_gather(const std::vector<Bytes>& parts, Bytes own, Operation op) {
  const int ranks = shared_.ranks(), me = shared_.rank();
  size_t total = 0, largest = 0;
  for (const Bytes& part : parts) total += part.size, largest = std::max(largest, part.size);
  begin(kAllGather, -1, 0, total, op);
  const bool streamed = total >= kStreaming;
  const Way taken = way(total, [&](int) { return own.data; });
  if (taken == kRead) return gather_read(parts, own, streamed), end();
  if (taken == kLent) return gather_lent(parts, own, largest, streamed), end();
  const size_t piece = shared_.slot_bytes();
  for (size_t index = 0, chunks = std::max<size_t>(chunks_of(largest, piece), 1); index < chunks; ++index) {
    const size_t size = cut(own.size, index, piece);
    const char* from = own.data + index * piece;
    const bool at_once = parts[me].data != own.data && !streamed;
    if (at_once) stores_.put_twice(open(), parts[me].data + index * piece, from, size);
    else stores_.put(open(), from, size);
    post();
    if (!at_once && parts[me].data != own.data) copy(parts[me].data + index * piece, from, size, streamed);
    for (int step = 1; step < ranks; ++step) {
      int peer = (me + step) % ranks;
      get(parts[peer].data + index * piece, read(peer), cut(parts[peer].size, index, piece), streamed);
    }
  }
  end();
}

void Rounds::broadcast(Bytes vector, int root, Operation op) {
  begin(kBroadcast, root, 0, vector.size, op);
  const Way taken = way(vector.size, [&](int) { return vector.data; });
  if (taken == kRead) return broadcast_read(vector, root), end();
  if (taken == kLent) return broadcast_lent(vector, root), end();
  const size_t piece = std::min(shared_.slot_bytes(), std::max(kLeastPiece, vector.size / kPieces / kLine * kLine));
  for (size_t index = 0, chunks = std::max<size_t>(chunks_of(vector.size, piece), 1); index < chunks; ++index) {
    const size_t size = cut(vector.size, index, piece);
    char* slot = open();
    if (shared_.rank() == root) stores_.put(slot, vector.data + index * piece, size);
    post();
    if (shared_.rank() != root) get(vector.data + index * piece, read(root), size, vector.size >= kStreaming);
  }
  end();
}

void Rounds::check_sizes(int source, uint64_t expected) {
  const uint64_t sent = shared_.sizes(source, round_)[shared_.rank()];
  if (sent == expected) return;
  shared_.fail(shared_.name(source) + " sends " + std::to_string(sent) + " bytes to " + shared_.name(shared_.rank()) +
               ", which expects " + std::to_string(expected) + ", in " + told(head_));
}

void Rounds::gather(const std::vector<Bytes>& parts, Bytes own, int root, Operation op) {
  begin(kGather, root, 0, ~0ULL, op);
  const size_t piece = shared_.slot_bytes();
  const int me = shared_.rank();
  size_t chunks = 1;
  for (size_t index = 0; index < chunks; ++index) {  // the root learns the largest size, and all learn it from the root
    char* slot = open();
    uint64_t* sizes = shared_.sizes(me, round_ + 1);
    std::fill(sizes, sizes + shared_.ranks(), own.size);
    if (me != root) stores_.put(slot, own.data + index * piece, cut(own.size, index, piece));
    post();
    for (int peer = 0; peer < shared_.ranks(); ++peer) {
      if (index == 0) read(peer), chunks = std::max(chunks, chunks_of(shared_.sizes(peer, round_)[me], piece));
      if (me != root) continue;
      if (index == 0) check_sizes(peer, parts[peer].size);
      const char* from = peer == me ? own.data + index * piece : read(peer);
      char* to = parts[peer].data + index * piece;
      if (to != from) get(to, from, cut(parts[peer].size, index, piece), false);
    }
  }
}

void Rounds::scatter(const std::vector<Bytes>& parts, Bytes own, int root, Operation op) {
  begin(kScatter, root, 0, ~0ULL, op);
  const int ranks = shared_.ranks(), me = shared_.rank();
  const size_t piece = shared_.slot_bytes() / ranks / kLine * kLine;
  size_t chunks = 1;
  for (size_t index = 0; index < chunks; ++index) {
    char* slot = open();
    if (me == root) {
      uint64_t* sizes = shared_.sizes(me, round_ + 1);
      for (int peer = 0; peer < ranks; ++peer) {
        sizes[peer] = parts[peer].size;
        chunks = std::max(chunks, chunks_of(parts[peer].size, piece));
        stores_.put(slot + peer * piece, parts[peer].data + index * piece, cut(parts[peer].size, index, piece));
      }
    }
    post();
    const char* theirs = read(root) + me * piece;
    if (index == 0) {
      check_sizes(root, own.size);
      for (int peer = 0; peer < ranks; ++peer)
        chunks = std::max(chunks, chunks_of(shared_.sizes(root, round_)[peer], piece));
    }
    get(own.data + index * piece, theirs, cut(own.size, index, piece), false);
  }
}

void Rounds::all_to_all(const std::vector<Bytes>& targets, const std::vector<Bytes>& sources, Operation op) {
  begin(kAllToAll, -1, 0, ~0ULL, op);
  const int ranks = shared_.ranks(), me = shared_.rank();
  const size_t piece = shared_.slot_bytes() / ranks / kLine * kLine;
  size_t chunks = 1, total = 0;
  for (const Bytes& part : sources) total += part.size;
  const bool streamed = total >= kStreaming;
  for (size_t index = 0; index < chunks; ++index) {
    char* slot = open();
    uint64_t* sizes = shared_.sizes(me, round_ + 1);
    for (int peer = 0; peer < ranks; ++peer) {
      sizes[peer] = targets[peer].size;
      if (peer != me) stores_.put(slot + peer * piece, targets[peer].data + index * piece, cut(targets[peer].size, index, piece));
    }
    post();
    for (int step = 0; step < ranks; ++step) {
      int peer = (me + step) % ranks;
      const char* theirs = peer == me ? targets[me].data + index * piece : read(peer) + me * piece;
      if (index == 0) {
        check_sizes(peer, sources[peer].size);
        for (int other = 0; other < ranks; ++other)
          chunks = std::max(chunks, chunks_of(shared_.sizes(peer, round_)[other], piece));
      }
      char* to = sources[peer].data + index * piece;
      if (to != theirs) get(to, theirs, cut(sources[peer].size, index, piece), streamed);
    }
  }
}

void Rounds::finish() {
  open();
  post();
  for (int peer = 0; peer < shared_.ranks(); ++peer) read(peer);
}

void Rounds::barrier(Operation op) {
  begin(kBarrier, -1, 0, 0, op);
  finish();
}

}  // namespace ridge
