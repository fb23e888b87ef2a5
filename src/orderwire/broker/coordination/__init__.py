"""What brokers keep in ZooKeeper, and how: commands, names, contents, transactions.  [S004:4.6]"""
