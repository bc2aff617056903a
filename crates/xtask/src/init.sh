#!/bin/sh
# First process of the guest: sets up what programs expect, runs the command, tells its exit status.
# Ports of the virtual machine: 1 standard output, 2 standard error, 3 what xtask wants to know; hvc0 is the terminal.

export PATH=/usr/local/bin:/usr/bin:/usr/sbin HOME=/root TERM=linux LC_ALL=C.UTF-8
umask 022

mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs -o mode=1777 tmp /tmp
ln -s /proc/self/fd /dev/fd
ln -s fd/0 /dev/stdin
ln -s fd/1 /dev/stdout
ln -s fd/2 /dev/stderr

while read -r module; do
	insmod "$module" || echo "cannot insert $module" >/dev/kmsg
done </etc/modules

# The ports come up on their own time after the driver.
until [ -c /dev/vport0p1 ] && [ -c /dev/vport0p2 ] && [ -c /dev/vport0p3 ]; do
	usleep 5000
done
exec 9>/dev/vport0p3

fail() {
	echo "error $*" >&9
	poweroff -f
}

# MESSAGE CONDITION...: waits for something that comes within seconds or not at all.
await() {
	message=$1
	shift
	tries=0
	until "$@"; do
		tries=$((tries + 1))
		[ $tries -lt 1000 ] || fail "$message"
		usleep 5000
	done
}

hostname uverbs
ip link set lo up
. /etc/vm/settings

# A driver that is not among the kernel's own modules.
if [ "$device" = siw ] || [ "$device" = efa ]; then
	message=$(insmod "/usr/lib/modules/$(uname -r)/$device.ko" 2>&1) || fail "cannot insert $device.ko: $message"
fi

if [ "$device" = rxe ] || [ "$device" = siw ]; then
	# The link-local address is the first GID: no waiting to see whether somebody else has it.
	echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad
	ip link add d0 type veth && ip link set veth0 name d1 || fail "cannot make the network devices"
	ip address add 192.168.77.1/24 dev d0
	ip link set d0 up
	ip link set d1 up
	await "d0 got no link-local address" grep -q '^fe80.* 20 80 *d0$' /proc/net/if_inet6
	message=$(uverbs link add "${device}0" type "$device" netdev d0 2>&1) ||
		fail "\`uverbs link add ${device}0 type $device netdev d0\` failed in the guest: $message"
fi

if [ "$device" = efa ]; then
	await "the driver efa made no device efa_0" test -d /sys/class/infiniband/efa_0
	await "no /dev/infiniband/uverbs0" test -c /dev/infiniband/uverbs0
fi

# The kernel booted on one processor.
for processor in /sys/devices/system/cpu/cpu[1-9]*/online; do
	[ ! -e "$processor" ] || echo 1 >"$processor"
done

echo ready >&9
if [ "$terminal" = yes ]; then
	stty $size </dev/hvc0
	setsid sh -c 'exec sh /etc/vm/command </dev/hvc0 >/dev/hvc0 2>&1 9>&-'
	status=$?
else
	# By way of pipes, which unlike the ports can be opened more than once, as /dev/stderr is.
	mkfifo -m 666 /run/out /run/err
	cat /run/out >/dev/vport0p1 &
	cats=$!
	cat /run/err >/dev/vport0p2 &
	cats="$cats $!"
	# In a process of its own, or what this shell says of a signal would go to the command's standard error.
	(exec sh /etc/vm/command </dev/null >/run/out 2>/run/err 9>&-)
	status=$?
	# Something that the command left running may keep the pipes open.
	(sleep 1 && kill $cats) &
	wait $cats
fi
echo "exit $status" >&9
# The host ends the machine when it has read that. Powered off at once, the machine could be gone before the line is out.
sleep 60
poweroff -f
