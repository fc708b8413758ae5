# An API server and its etcd, as one: they start together, and when one ends so does the other. With a scheduler,
# that is the third.
# $1 etcd, $2 kube-apiserver, $3 folder, $4 port, $5 and $6 etcd's ports, $7 kube-scheduler and $8 its port, if any
client="http://127.0.0.1:$5"
peer="http://127.0.0.1:$6"

"$1" --data-dir "$3/etcd" --listen-client-urls "$client" --advertise-client-urls "$client" \
    --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "default=$peer" &
etcd=$!
"$2" --etcd-servers="$client" --bind-address=127.0.0.1 --advertise-address=127.0.0.1 --secure-port="$4" \
    --cert-dir="$3/certificates" --token-auth-file="$3/tokens.csv" --authorization-mode=RBAC \
    --service-account-issuer=https://kubernetes.default.svc --service-account-signing-key-file="$3/accounts.key" \
    --service-account-key-file="$3/accounts.key" --service-cluster-ip-range=10.0.0.0/24 \
    --disable-admission-plugins=ServiceAccount &
server=$!

scheduler=
# Not asked politely: an API server takes a minute to leave, and nothing here outlives it.
trap 'kill -KILL $server $etcd $scheduler 2>/dev/null; wait; exit 0' TERM INT
while kill -0 $server 2>/dev/null && kill -0 $etcd 2>/dev/null && { [ -z "$scheduler" ] || kill -0 $scheduler 2>/dev/null; }; do
    # It reads the server's certificate once, when it starts. The key is written last.
    if [ -n "$7" ] && [ -z "$scheduler" ] && [ -s "$3/certificates/apiserver.key" ]; then
        "$7" --kubeconfig="$3/kubeconfig" --leader-elect=false --bind-address=127.0.0.1 --secure-port="$8" --port=0 \
            --cert-dir="$3/scheduler" &
        scheduler=$!
    fi
    # In the background: a signal is heard while waiting, and not while a program runs.
    sleep 1 &
    wait $!
done
kill -KILL $server $etcd $scheduler 2>/dev/null
wait
exit 1
