"""Who a client is, and what it may do: SASL and access control lists.  [S004 spec 6.6]"""
