export MODEL=Small
TP=4 PP=2 GBS=32 bash submit.sh --recompute-granularity selective --pipeline-model-parallel-layout "Et*7|t*9L"
TP=8 bash submit.sh
