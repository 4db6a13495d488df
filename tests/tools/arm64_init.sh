#!/bin/busybox sh
export PATH=/bin:/usr/bin:/programs PYTHONPATH=/site PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
/bin/busybox --install -s /bin 2>/dev/null
mount -t proc none /proc; mount -t sysfs none /sys; mount -t devtmpfs none /dev; mount -t tmpfs none /tmp
stty -F /dev/console -onlcr 2>/dev/null
echo 0 > /proc/sys/kernel/yama/ptrace_scope 2>/dev/null
cd /tmp
/usr/bin/python3.11 /guest.py
echo "-- the guest ends: $?"
poweroff -f
